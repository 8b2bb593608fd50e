#include "ps/service.h"

#include <utility>

#include "base/error.h"

namespace monolith::ps {
namespace {

constexpr std::string_view kRows = "rows\n";

class RowConversation : public rpc::Conversation {
 public:
  explicit RowConversation(std::shared_ptr<RowHost> host) : host_(std::move(host)) {}
  rpc::Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) override {
    return host_->Call(kind, head, body);
  }

 private:
  const std::shared_ptr<RowHost> host_;
};

// Removes the first line from the words and returns it without its end.
std::string TakeLine(std::string_view& words) {
  const size_t end = words.find('\n');
  if (end == std::string_view::npos) throw Error(Code::kDataLoss, "greeting: a line is missing");
  const std::string line(words.substr(0, end));
  words.remove_prefix(end + 1);
  return line;
}

std::string TextOf(BucketRange buckets) { return std::to_string(buckets.begin) + " " + std::to_string(buckets.end); }

}  // namespace

std::string RowWords(const std::string& store, BucketRange buckets, const std::string& agreement) {
  return std::string(kRows) + store + "\n" + TextOf(buckets) + "\n" + agreement;
}

std::shared_ptr<RowHost> Service::HostRows(const std::string& store, Group& group, BucketRange buckets,
                                           std::string agreement) {
  if (store.find('\n') != std::string::npos) throw Error(Code::kInvalidArgument, "a store's name must be one line");
  auto host = std::make_shared<RowHost>(group, buckets, std::move(agreement), wake_);
  MutexLock lock(mutex_);
  if (!hosts_.emplace(store, host).second)
    throw Error(Code::kFailedPrecondition, "store '" + store + "' is hosted already");
  return host;
}

void Service::DropRows(const std::string& store) {
  std::shared_ptr<RowHost> host;
  {
    MutexLock lock(mutex_);
    const auto found = hosts_.find(store);
    if (found == hosts_.end()) return;
    host = std::move(found->second);
    hosts_.erase(found);
  }
  host->Close();
}

std::unique_ptr<rpc::Conversation> Service::Open(const std::string& peer, const std::string& words,
                                                 std::string* reply) {
  return words.starts_with(kRows) ? OpenRows(words) : others_.Open(peer, words, reply);
}

std::unique_ptr<rpc::Conversation> Service::OpenRows(const std::string& words) {
  std::string_view rest(words);
  rest.remove_prefix(kRows.size());
  const std::string store = TakeLine(rest), buckets = TakeLine(rest);
  std::shared_ptr<RowHost> host;
  {
    MutexLock lock(mutex_);
    const auto found = hosts_.find(store);
    if (found != hosts_.end()) host = found->second;
  }
  if (host == nullptr) {
    throw Error(Code::kFailedPrecondition,
                "the server has no store '" + store + "'; it may have restarted: open the store again");
  }
  if (buckets != TextOf(host->buckets())) {
    throw Error(Code::kFailedPrecondition, "store '" + store + "': the server has buckets " + TextOf(host->buckets()) +
                                               ", not " + buckets + "; check the order of the servers");
  }
  if (rest != host->agreement()) {
    throw Error(Code::kFailedPrecondition,
                "store '" + store + "': the server's tables are others, or learn otherwise; open the store again");
  }
  return std::make_unique<RowConversation>(std::move(host));
}

}  // namespace monolith::ps
