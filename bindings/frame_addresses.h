// Conversion of addresses and greeting words from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "rpc/socket.h"

namespace monolith {

using HostAndPort = std::pair<std::string, uint16_t>;

inline rpc::Address AddressOf(const HostAndPort& pair) { return {pair.first, pair.second}; }

inline std::vector<rpc::Address> AddressesOf(const std::vector<HostAndPort>& pairs) {
  std::vector<rpc::Address> addresses;
  for (const HostAndPort& pair : pairs) addresses.push_back(AddressOf(pair));
  return addresses;
}

inline std::vector<std::string> TextsOf(const std::vector<nanobind::bytes>& words) {
  std::vector<std::string> texts;
  for (const nanobind::bytes& each : words) texts.emplace_back(each.c_str(), each.size());
  return texts;
}

}  // namespace monolith
