// Conversion of addresses and greeting words from Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "rpc/socket.h"
#include "rpc/tls.h"

namespace monolith {

// Host and port of a server, and the client's side of TLS where the server speaks it.
using HostAndPort =
    std::variant<std::pair<std::string, uint16_t>, std::tuple<std::string, uint16_t, std::shared_ptr<rpc::TlsContext>>>;

inline rpc::Address AddressOf(const HostAndPort& address) {
  if (const auto* plain = std::get_if<0>(&address)) return {plain->first, plain->second};
  const auto& [host, port, tls] = std::get<1>(address);
  return {host, port, tls};
}

inline std::vector<rpc::Address> AddressesOf(const std::vector<HostAndPort>& pairs) {
  std::vector<rpc::Address> addresses;
  for (const HostAndPort& address : pairs) addresses.push_back(AddressOf(address));
  return addresses;
}

inline std::vector<std::string> TextsOf(const std::vector<nanobind::bytes>& words) {
  std::vector<std::string> texts;
  for (const nanobind::bytes& each : words) texts.emplace_back(each.c_str(), each.size());
  return texts;
}

}  // namespace monolith
