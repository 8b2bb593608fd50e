// Rows stored by other processes: the calls of a worker.
#include "ps/row_client.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "bindings.h"
#include "frame_addresses.h"
#include "interrupts.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> Span(const In<T>& array) {
  return {array.data(), array.size()};
}

// A pull or push that is cancelled when it is garbage-collected; its creator keeps its plan and arrays alive.
template <typename Call>
struct UnderWay {
  explicit UnderWay(std::unique_ptr<Call> made) : call(std::move(made)) {}
  UnderWay(UnderWay&&) noexcept = default;
  ~UnderWay() {
    nb::gil_scoped_release no_gil;
    call.reset();
  }
  std::unique_ptr<Call> call;
};
using Pull = UnderWay<ps::RowPull>;
using Push = UnderWay<ps::RowPush>;

bool AreFinite(std::span<const float> values, float scale) {
  // Branch-free, so that it vectorises: an exponent of all ones is that of a value that is not finite.
  uint32_t found = 0;
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value * scale);
    found |= static_cast<uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
  }
  return found == 0;
}

std::vector<BucketRange> RangesOf(const std::vector<std::pair<uint32_t, uint32_t>>& pairs) {
  std::vector<BucketRange> ranges;
  for (const auto& [begin, end] : pairs) ranges.push_back({begin, end});
  return ranges;
}

void BindCalls(nb::module_& m) {
  nb::class_<Pull>(m, "RowPull")
      .def(
          "begin", [](Pull& self, double seconds) { WithoutGil([&] { self.call->Begin(seconds); }); },
          "timeout_seconds"_a)
      .def_prop_ro("done", [](const Pull& self) { return self.call->is_done(); })
      .def(
          "wait_for",
          [](const Pull& self, double seconds) { return WithoutGil([&] { return self.call->WaitFor(seconds); }); },
          "seconds"_a)
      .def("finish", [](Pull& self) {
        WaitHearingSignals([&](double seconds) { return self.call->WaitFor(seconds); });
        const auto result = WithoutGil([&] { return self.call->Finish(); });
        return std::tuple(result.is_lacking, result.seen, result.newest_time);
      });
  nb::class_<Push>(m, "RowPush")
      .def(
          "begin", [](Push& self, double seconds) { WithoutGil([&] { self.call->Begin(seconds); }); },
          "timeout_seconds"_a)
      .def_prop_ro("done", [](const Push& self) { return self.call->is_done(); })
      .def(
          "wait_for",
          [](const Push& self, double seconds) { return WithoutGil([&] { return self.call->WaitFor(seconds); }); },
          "seconds"_a)
      .def(
          "finish",
          [](Push& self, double seconds) {
            WaitHearingSignals([&](double limit) { return self.call->WaitFor(limit); });
            const auto result = WithoutGil([&] { return self.call->Finish(seconds); });
            return std::tuple(result.applied, result.newest_time, result.steps_of_others);
          },
          "timeout_seconds"_a);
}

void InitClient(ps::RowClient* self, const std::vector<HostAndPort>& servers, const std::vector<nb::bytes>& words,
                const std::vector<std::pair<uint32_t, uint32_t>>& owned, const Group& tables, const std::string& token,
                bool half, bool with_counts, uint64_t window_bytes, double lost_after_seconds) {
  ps::RowClientOptions options;
  options.frames.token = token;
  options.frames.window_bytes = window_bytes;
  options.frames.lost_after_seconds = lost_after_seconds;
  options.half = half;
  options.with_counts = with_counts;
  new (self) ps::RowClient(AddressesOf(servers), TextsOf(words), RangesOf(owned), tables, options);
}

Pull NewPull(ps::RowClient& self, const Plan& plan, const Out& rows, int64_t worker, std::vector<int64_t> incarnations,
             int64_t after, int64_t step, uint64_t ticket) {
  ps::PullQuestion question;
  question.worker = worker;
  question.after = after;
  question.step = step;
  question.ticket = ticket;
  return Pull(
      WithoutGil([&] { return self.NewPull(plan, question, std::move(incarnations), {rows.data(), rows.size()}); }));
}

Push NewPush(ps::RowClient& self, const Plan& plan, const monolith::Push& push, std::vector<int64_t> incarnations,
             const In<float>& gradients, const In<float>& rates, const In<int64_t>& times,
             const std::optional<In<float>>& latest, int64_t step, float scale, bool known_finite, uint32_t known_time,
             uint64_t ticket, std::vector<uint64_t> dropped, std::vector<int64_t> joined_behind) {
  ps::PushOrder order{push,
                      std::move(incarnations),
                      step,
                      scale,
                      known_finite,
                      known_time,
                      ticket,
                      std::move(dropped),
                      std::move(joined_behind)};
  const std::span<const float> seen = latest.has_value() ? Span(*latest) : std::span<const float>();
  return Push(WithoutGil(
      [&] { return self.NewPush(plan, std::move(order), Span(gradients), Span(rates), Span(times), seen); }));
}

}  // namespace

void BindRowClient(nb::module_& m) {
  BindCalls(m);
  m.def(
      "are_finite",
      [](const In<float>& values, float scale) { return WithoutGil([&] { return AreFinite(Span(values), scale); }); },
      "values"_a.noconvert(), "scale"_a);
  nb::class_<ps::RowClient>(m, "RowClient")
      .def("__init__", &InitClient, "servers"_a, "words"_a, "owned"_a, "tables"_a, nb::kw_only(), "token"_a = "",
           "half"_a = false, "with_counts"_a = true, "window_bytes"_a = uint64_t{256} << 20,
           "lost_after_seconds"_a = std::numeric_limits<double>::infinity(), nb::keep_alive<1, 5>())
      .def(
          "join",
          [](ps::RowClient& self, int64_t worker, double seconds) {
            std::vector<std::tuple<int64_t, std::optional<BatchStamp>, int64_t, int64_t>> found;
            for (ps::JoinAnswer& each : WithoutGil([&] { return self.Join(worker, seconds); }))
              found.emplace_back(each.joined.incarnation, std::move(each.joined.last), each.newest_time,
                                 each.steps_of_others);
            return found;
          },
          "worker"_a, "timeout_seconds"_a)
      .def(
          "where",
          [](ps::RowClient& self, int64_t worker, const std::vector<int64_t>& incarnations, double seconds) {
            std::vector<std::pair<int64_t, int64_t>> found;
            for (const ps::WhereAnswer& each : WithoutGil([&] { return self.Where(worker, incarnations, seconds); }))
              found.emplace_back(each.last, each.newest_time);
            return found;
          },
          "worker"_a, "incarnations"_a, "timeout_seconds"_a)
      .def("new_pull", &NewPull, "plan"_a, "rows"_a.noconvert(), nb::kw_only(), "worker"_a, "incarnations"_a, "after"_a,
           "step"_a, "ticket"_a, nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(), nb::keep_alive<0, 3>())
      .def("new_push", &NewPush, "plan"_a, "push"_a, nb::kw_only(), "incarnations"_a, "gradients"_a.noconvert(),
           "rates"_a.noconvert(), "times"_a.noconvert(), "latest"_a.noconvert().none(), "step"_a, "scale"_a,
           "known_finite"_a, "known_time"_a, "ticket"_a, "dropped"_a, "joined_behind"_a, nb::keep_alive<0, 1>(),
           nb::keep_alive<0, 2>(), nb::keep_alive<0, 5>(), nb::keep_alive<0, 8>())
      .def(
          "drop",
          [](ps::RowClient& self, int64_t worker, std::vector<uint64_t> tickets) {
            WithoutGil([&] { self.Drop(worker, std::move(tickets)); });
          },
          "worker"_a, "tickets"_a)
      .def(
          "move",
          [](ps::RowClient& self, int server, const HostAndPort& address, const nb::bytes& words) {
            self.frames().Move(server, AddressOf(address), {words.c_str(), words.size()});
          },
          "server"_a, "address"_a, "words"_a)
      .def("close", &ps::RowClient::Close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace monolith
