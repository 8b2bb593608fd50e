// Frames between processes: a server whose calls Python answers, unless they are about rows, and a client.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>

#include "base/error.h"
#include "bindings.h"
#include "buffer_view.h"
#include "frame_addresses.h"
#include "interrupts.h"
#include "ps/push_gate.h"
#include "ps/service.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "rpc/tls.h"
#include "table/group.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

// Converts a Python exception to an error for the other side.
Error ErrorOf(const nb::python_error& error) {
  const std::string name = nb::cast<std::string>(error.type().attr("__name__"));
  const std::string text = nb::cast<std::string>(nb::str(error.value()));
  for (int code = 0; code <= static_cast<int>(kLastCode); ++code) {
    if (name == ErrorClassName(static_cast<Code>(code))) return {static_cast<Code>(code), text};
  }
  return {Code::kInternal, name + ": " + text};
}

// Calls a function with the GIL held, and converts its exception to an Error.
template <typename Body>
auto WithGil(Body&& body) {
  nb::gil_scoped_acquire gil;
  try {
    return body();
  } catch (const nb::python_error& error) {
    throw ErrorOf(error);
  }
}

// A body made by Python; released with the GIL held.
struct PythonBody {
  std::vector<BufferView> views;
  static std::shared_ptr<const void> Share(std::vector<BufferView> views) {
    return {new PythonBody{std::move(views)}, [](PythonBody* body) {
              nb::gil_scoped_acquire gil;
              delete body;
            }};
  }
};

class PythonConversation : public rpc::Conversation {
 public:
  PythonConversation(nb::handle handler, std::string words) : handler_(handler), words_(std::move(words)) {}

  rpc::Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) override {
    return WithGil([&]() -> rpc::Answer {
      nb::object shown = nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(const_cast<uint8_t*>(body.data())),
                                                           static_cast<Py_ssize_t>(body.size()), PyBUF_READ));
      const nb::object result = handler_.attr("call")(nb::bytes(words_.data(), words_.size()), kind,
                                                      nb::bytes(head.data(), head.size()), shown);
      if (result.is_none()) throw rpc::NotNow();
      const auto [answer, parts] = nb::cast<std::pair<nb::bytes, nb::object>>(result);
      std::vector<BufferView> views;
      rpc::Answer found{{answer.c_str(), answer.size()}, {}, nullptr};
      for (nb::handle part : parts) {
        views.emplace_back(part);
        found.body.push_back(views.back().bytes());
      }
      found.owner = PythonBody::Share(std::move(views));
      return found;
    });
  }

 private:
  const nb::handle handler_;  // outlives the server
  const std::string words_;
};

class PythonService : public rpc::Service {
 public:
  explicit PythonService(nb::handle handler) : handler_(handler) {}

  std::unique_ptr<rpc::Conversation> Open(const std::string& peer, const std::string& words,
                                          std::string* reply) override {
    *reply = WithGil([&] {
      const auto said = nb::cast<nb::bytes>(handler_.attr("greet")(nb::bytes(words.data(), words.size()), peer));
      return std::string(said.c_str(), said.size());
    });
    return std::make_unique<PythonConversation>(handler_, words);
  }

 private:
  const nb::handle handler_;
};

class FrameServer {
 public:
  FrameServer(rpc::ServerOptions options, nb::object handler)
      : handler_(std::move(handler)),
        others_(handler_),
        service_(others_, [this] { Wake(); }),
        server_(std::make_unique<rpc::Server>(std::move(options), service_)) {}
  ~FrameServer() { Stop(0.0); }

  uint16_t port() const { return server_->port(); }
  rpc::ServerStats stats() const { return server_->stats(); }
  ps::Service& service() { return service_; }
  void Wake() { server_->Wake(); }
  void Adopt(rpc::Socket socket, std::string peer) { server_->Adopt(std::move(socket), std::move(peer)); }
  void Stop(double drain_seconds) {
    nb::gil_scoped_release no_gil;  // its threads may be waiting for the GIL
    server_->Stop(drain_seconds);
  }

 private:
  const nb::object handler_;
  PythonService others_;
  ps::Service service_;
  std::unique_ptr<rpc::Server> server_;
};

// A call with the Python objects that it reads from and writes to.
class FrameCall {
 public:
  FrameCall(rpc::Client& client, int server, rpc::OutgoingFrame question, std::vector<BufferView> parts,
            std::unique_ptr<BufferView> into, double timeout_seconds)
      : client_(client), server_(server), parts_(std::move(parts)), into_(std::move(into)) {
    for (const BufferView& part : parts_) question.body.push_back(part.bytes());
    const std::span<uint8_t> place = into_ == nullptr ? std::span<uint8_t>() : into_->writable();
    call_ =
        WithoutGil([&] { return client_.Begin(server_, std::move(question), place, rpc::InSeconds(timeout_seconds)); });
  }
  ~FrameCall() {
    nb::gil_scoped_release no_gil;
    client_.GiveUp(server_, call_);
  }

  bool is_done() const { return call_->is_done(); }
  std::pair<nb::bytes, nb::bytes> Wait() {
    WaitHearingSignals([this](double seconds) { return call_->WaitUntil(rpc::InSeconds(seconds)); });
    const rpc::Frame& frame = call_->Wait();
    const bool is_placed = into_ != nullptr && frame.body.data() == into_->bytes().data();
    if (into_ != nullptr && !is_placed && into_->size() != 0 && frame.body.size() != 0)
      throw Error(Code::kDataLoss, "the answer's body is not where it was wanted");
    const size_t shown = is_placed ? 0 : frame.body.size();
    return {nb::bytes(frame.head.data(), frame.head.size()), nb::bytes(frame.body.data(), shown)};
  }

 private:
  rpc::Client& client_;
  const int server_;
  const std::vector<BufferView> parts_;
  const std::unique_ptr<BufferView> into_;
  std::shared_ptr<rpc::Call> call_;
};

std::unique_ptr<FrameCall> BeginCall(rpc::Client& client, int server, uint16_t kind, const nb::bytes& head,
                                     const nb::iterable& parts, nb::handle into, double timeout_seconds) {
  std::vector<BufferView> views;
  for (nb::handle part : parts) views.emplace_back(part);
  auto place = into.is_none() ? nullptr : std::make_unique<BufferView>(into, true);
  rpc::OutgoingFrame question{kind, 0, {head.c_str(), head.size()}, {}, nullptr};
  return std::make_unique<FrameCall>(client, server, std::move(question), std::move(views), std::move(place),
                                     timeout_seconds);
}

void BindGate(nb::module_& m) {
  nb::class_<ps::PushGate>(m, "PushGate", nb::dynamic_attr())
      .def(
          "__init__",
          [](nb::pointer_and_handle<ps::PushGate> self, nb::handle on_open) {
            if (on_open.is_none()) {
              new (self.p) ps::PushGate([] {});
              return;
            }
            self.h.attr("on_open") = on_open;  // in its __dict__, where the garbage collector finds it
            new (self.p) ps::PushGate([gate = self.h] {
              nb::gil_scoped_acquire gil;  // allow() and release() have released it
              gate.attr("on_open")();
            });
          },
          "on_open"_a.none() = nb::none(),
          "A gate of an owner in Python. allow() and release() call `on_open`, in the thread of their caller.")
      .def("enter", &ps::PushGate::Enter, "worker"_a, "seq"_a, "applied"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("leave", &ps::PushGate::Leave, nb::call_guard<nb::gil_scoped_release>())
      .def("hold", &ps::PushGate::Hold, "seconds"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("allow", &ps::PushGate::Allow, "limits"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("release", &ps::PushGate::Open, nb::call_guard<nb::gil_scoped_release>());
}

void BindTls(nb::module_& m) {
  nb::class_<rpc::TlsContext>(m, "TlsContext")
      .def(
          "__init__",
          [](rpc::TlsContext* self, bool is_server, std::string certificate, std::string key, std::string authorities) {
            new (self) rpc::TlsContext({std::move(certificate), std::move(key), std::move(authorities)}, is_server);
          },
          nb::kw_only(), "is_server"_a, "certificate"_a = "", "key"_a = "", "authorities"_a = "",
          "One side of TLS, by the names of PEM files.");
}

void BindServer(nb::module_& m) {
  nb::class_<ps::RowHost>(m, "RowHost")
      .def_prop_ro("gate", &ps::RowHost::gate, nb::rv_policy::reference_internal)
      .def_prop_ro("num_kept_plans", &ps::RowHost::num_kept);
  nb::class_<FrameServer>(m, "FrameServer")
      .def(
          "__init__",
          [](FrameServer* self, const std::string& host, uint16_t port, const std::string& token, int num_threads,
             nb::object handler, int max_connections, double patience_seconds, std::shared_ptr<rpc::TlsContext> tls) {
            rpc::ServerOptions options;
            options.address = {host, port};
            options.token = token;
            options.num_threads = num_threads;
            options.max_connections = max_connections;
            options.patience_seconds = patience_seconds;
            options.tls = std::move(tls);
            new (self) FrameServer(std::move(options), std::move(handler));
          },
          nb::kw_only(), "host"_a, "port"_a, "token"_a, "num_threads"_a, "handler"_a, "max_connections"_a = 16'384,
          "patience_seconds"_a = 30.0, "tls"_a.none() = nb::none())
      .def_prop_ro("port", &FrameServer::port)
      .def(
          "host_rows",
          [](FrameServer& self, const std::string& name, Group& group, uint32_t begin, uint32_t end,
             const nb::bytes& agreement) {
            return self.service().HostRows(name, group, {begin, end}, {agreement.c_str(), agreement.size()});
          },
          "name"_a, "group"_a, "begin"_a, "end"_a, "agreement"_a, nb::keep_alive<1, 3>(), nb::keep_alive<0, 1>())
      .def(
          "drop_rows",
          [](FrameServer& self, const std::string& name) { WithoutGil([&] { self.service().DropRows(name); }); },
          "name"_a)
      .def(
          "adopt",
          [](FrameServer& self, int descriptor, std::string peer) {
            rpc::Socket socket(descriptor);
            WithoutGil([&] { self.Adopt(std::move(socket), std::move(peer)); });
          },
          "descriptor"_a, "peer"_a, "Serves a connection without TLS that another port has accepted, and owns it.")
      .def("wake", &FrameServer::Wake, nb::call_guard<nb::gil_scoped_release>())
      .def("stats",
           [](const FrameServer& self) {
             const rpc::ServerStats stats = self.stats();
             return std::map<std::string, int64_t>{
                 {"connections", stats.connections}, {"calls", stats.calls}, {"refused", stats.refused}};
           })
      .def("stop", &FrameServer::Stop, "drain_seconds"_a);
}

void BindClient(nb::module_& m) {
  nb::class_<FrameCall>(m, "FrameCall").def_prop_ro("done", &FrameCall::is_done).def("wait", &FrameCall::Wait);
  nb::class_<rpc::Client>(m, "FrameClient")
      .def(
          "__init__",
          [](rpc::Client* self, const std::vector<HostAndPort>& servers, const std::vector<nb::bytes>& words,
             const std::string& token, uint64_t window_bytes, double first_backoff_seconds, double last_backoff_seconds,
             double lost_after_seconds) {
            rpc::ClientOptions options;
            options.token = token;
            options.window_bytes = window_bytes;
            options.first_backoff_seconds = first_backoff_seconds;
            options.last_backoff_seconds = last_backoff_seconds;
            options.lost_after_seconds = lost_after_seconds;
            new (self) rpc::Client(AddressesOf(servers), TextsOf(words), options);
          },
          "servers"_a, "words"_a, nb::kw_only(), "token"_a = "", "window_bytes"_a = uint64_t{256} << 20,
          "first_backoff_seconds"_a = 0.02, "last_backoff_seconds"_a = 2.0,
          "lost_after_seconds"_a = std::numeric_limits<double>::infinity())
      .def("begin", &BeginCall, "server"_a, "kind"_a, "head"_a, "parts"_a, "into"_a.none(), "timeout_seconds"_a,
           nb::keep_alive<0, 1>())
      .def(
          "move",
          [](rpc::Client& self, int server, const HostAndPort& address, const nb::bytes& words) {
            self.Move(server, AddressOf(address), {words.c_str(), words.size()});
          },
          "server"_a, "address"_a, "words"_a)
      .def(
          "reply_of",
          [](const rpc::Client& self, int server) {
            const std::string reply = self.ReplyOf(server);
            return nb::bytes(reply.data(), reply.size());
          },
          "server"_a)
      .def("close", &rpc::Client::Close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void BindRpc(nb::module_& m) {
  m.attr("FRAME_VERSION") = rpc::kFrameVersion;
  BindGate(m);
  BindTls(m);
  BindServer(m);
  BindClient(m);
}

}  // namespace monolith
