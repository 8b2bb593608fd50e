// Servers of rows and a client of them in one process, over real sockets.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ps/row_client.h"
#include "ps/service.h"
#include "rpc/server.h"
#include "table/group_for_test.h"

namespace monolith::ps {

inline constexpr double kEndsHangs = 60.0;

class NobodyElse : public rpc::Service {
 public:
  std::unique_ptr<rpc::Conversation> Open(const std::string&, const std::string&, std::string*) override {
    throw Error(Code::kNotFound, "only rows are here");
  }
};

struct RowServer {
  RowServer(BucketRange buckets, const GroupOptions& options)
      : group(MakeTestGroup(options)), service(nobody, [this] {
          if (server != nullptr) server->Wake();
        }) {
    host = service.HostRows("test", *group, buckets, "agreed");
    Start(0);
  }
  void Start(uint16_t port) {
    rpc::ServerOptions options;
    options.address.port = port;
    server = std::make_unique<rpc::Server>(options, service);
  }
  std::unique_ptr<Group> group;
  NobodyElse nobody;
  std::unique_ptr<rpc::Server> server;
  Service service;
  std::shared_ptr<RowHost> host;
};

inline std::vector<BucketRange> Shares(uint32_t servers) {
  std::vector<BucketRange> shares;
  for (uint32_t k = 0; k < servers; ++k) {
    const auto begin = [&](uint32_t number) { return (kNumBuckets * number + servers - 1) / servers; };
    shares.push_back({begin(k), begin(k + 1)});
  }
  return shares;
}

struct RowCluster {
  explicit RowCluster(uint32_t num_servers, const GroupOptions& options = {}) : shell(MakeTestGroup(options)) {
    for (const BucketRange& share : Shares(num_servers)) servers.push_back(std::make_unique<RowServer>(share, options));
    client = NewClient();
  }
  std::unique_ptr<RowClient> NewClient(RowClientOptions options = {}) {
    std::vector<rpc::Address> addresses;
    std::vector<std::string> words;
    for (const auto& server : servers) {
      addresses.push_back({"127.0.0.1", server->server->port()});
      words.push_back(RowWords("test", server->host->buckets(), "agreed"));
    }
    return std::make_unique<RowClient>(addresses, words, Shares(static_cast<uint32_t>(servers.size())), *shell,
                                       std::move(options));
  }
  std::unique_ptr<Group> shell;  // for plans
  std::vector<std::unique_ptr<RowServer>> servers;
  std::unique_ptr<RowClient> client;
};

// One worker that trains table 0 with the first half of its ids and table 1 with the others.
class Trainer {
 public:
  Trainer(RowClient& client, const Group& shell, int64_t worker) : client_(client), shell_(shell), worker_(worker) {
    for (const JoinAnswer& each : client.Join(worker, kEndsHangs)) incarnations_.push_back(each.joined.incarnation);
  }

  Plan NewPlan(const std::vector<int64_t>& ids) const {
    const auto count = static_cast<int64_t>(ids.size());
    const std::vector<int64_t> splits = {0, count / 2, count};
    return shell_.NewPlan(ids, splits, true);
  }
  std::vector<float> Pull(const Plan& plan, uint64_t ticket, int64_t after = kNothingApplied) {
    std::vector<float> rows(static_cast<size_t>(shell_.NumValues(plan)));
    PullQuestion question;
    question.worker = worker_;
    question.after = after;
    question.ticket = ticket;
    const auto pull = client_.NewPull(plan, question, incarnations_, rows);
    pull->Begin(kEndsHangs);
    was_lacking = pull->Finish().is_lacking;
    return rows;
  }
  // Makes a push, which is not begun. Its arguments must outlive it.
  std::unique_ptr<RowPush> NewPush(const Plan& plan, const std::vector<float>& gradients, int64_t seq, int64_t previous,
                                   uint64_t ticket = kNoTicket) {
    PushOrder order;
    order.push = {0, seq, {worker_, seq, "at " + std::to_string(seq), 1000 * seq}, previous};
    order.incarnations = incarnations_;
    order.ticket = ticket;
    static const std::vector<float> rates = {0.5f, 1.0f};
    static const std::vector<int64_t> times = {kStartTime};
    return client_.NewPush(plan, std::move(order), gradients, rates, times, {});
  }
  Applied Push(const Plan& plan, const std::vector<float>& gradients, int64_t seq, int64_t previous,
               uint64_t ticket = kNoTicket) {
    const auto push = NewPush(plan, gradients, seq, previous, ticket);
    push->Begin(kEndsHangs);
    return push->Finish(kEndsHangs).applied;
  }
  const std::vector<int64_t>& incarnations() const { return incarnations_; }

  bool was_lacking = false;

 private:
  RowClient& client_;
  const Group& shell_;
  const int64_t worker_;
  std::vector<int64_t> incarnations_;
};

}  // namespace monolith::ps
