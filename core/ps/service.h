// The services of a parameter server: calls about the rows of its stores, and others, which another service answers.
//
// The words of a greeting select the service of a connection: "rows", the store's name, its buckets and the agreement
// on the update rules of its rows, a line each; any other first line selects the other service. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "ps/row_host.h"
#include "rpc/server.h"

namespace monolith::ps {

std::string RowWords(const std::string& store, BucketRange buckets, const std::string& agreement);

class Service : public rpc::Service {
 public:
  // `others` opens conversations that are not about rows; `wake` is called when parked calls may be retried.
  Service(rpc::Service& others, std::function<void()> wake) : others_(others), wake_(std::move(wake)) {}

  // Throws kFailedPrecondition for a store that is hosted already.
  std::shared_ptr<RowHost> HostRows(const std::string& store, Group& group, BucketRange buckets, std::string agreement);
  // Waits for calls in progress.
  void DropRows(const std::string& store);
  std::unique_ptr<rpc::Conversation> Open(const std::string& peer, const std::string& words,
                                          std::string* reply) override;

 private:
  std::unique_ptr<rpc::Conversation> OpenRows(const std::string& words);

  rpc::Service& others_;
  const std::function<void()> wake_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<RowHost>> hosts_ GUARDED_BY(mutex_);
};

}  // namespace monolith::ps
