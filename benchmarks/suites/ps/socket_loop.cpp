// What moving bytes between two processes costs when nothing else is done: blocking sends and receives over loopback.
//
// usage: socket_loop
// Each line of standard input is a turn: ASK ROWS PUSH BUFFERS STEPS, sizes in bytes. A step is the traffic of a worker
// and a server: the worker sends ASK bytes, receives ROWS, sends PUSH, and receives a response of 16 bytes. Each end
// cycles through BUFFERS buffers, as the batches of a run are different bytes; with 1 they stay in the cache as far as
// they fit, which is the lower bound of the cost. The response to a turn is one line: seconds of CPU time of both ends
// together, and seconds of wall time, for all of its steps. The process ends at the end of input, and its server, a
// child, with it. Each end has one thread.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr uint64_t kAnswer = 16;

struct Turn {
  uint64_t ask, rows, push, buffers, steps;
};

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  _exit(1);
}

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Send(int fd, const void* from, uint64_t bytes) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent <= 0) Fail("socket_loop: send");
    next += sent;
    bytes -= static_cast<uint64_t>(sent);
  }
}

// Returns false iff the other end has closed before the first byte.
bool Receive(int fd, void* to, uint64_t bytes) {
  char* next = static_cast<char*>(to);
  const uint64_t all = bytes;
  while (bytes > 0) {
    const ssize_t got = recv(fd, next, bytes, 0);
    if (got == 0 && bytes == all) return false;
    if (got <= 0) Fail("socket_loop: recv");
    next += got;
    bytes -= static_cast<uint64_t>(got);
  }
  return true;
}

void WithoutDelay(int fd) {
  const int yes = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0) Fail("socket_loop: setsockopt");
}

// The buffers of one end, written once, so that no page of them is new when a step is timed.
class Buffers {
 public:
  explicit Buffers(const Turn& turn)
      : size_(std::max({turn.ask, turn.rows, turn.push, kAnswer})),
        count_(std::max<uint64_t>(turn.buffers, 1)),
        bytes_(size_ * count_, 1) {}

  char* of_step(uint64_t step) { return bytes_.data() + step % count_ * size_; }

 private:
  uint64_t size_, count_;
  std::vector<char> bytes_;
};

[[noreturn]] void Serve(int listening) {
  const int fd = accept(listening, nullptr, nullptr);
  if (fd < 0) Fail("socket_loop: accept");
  WithoutDelay(fd);
  Turn turn{};
  while (Receive(fd, &turn, sizeof turn)) {
    Buffers buffers(turn);
    const double begun = Seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t step = 0; step < turn.steps; ++step) {
      char* buffer = buffers.of_step(step);
      if (!Receive(fd, buffer, turn.ask)) Fail("socket_loop: the peer closed the connection");
      Send(fd, buffer, turn.rows);
      if (!Receive(fd, buffer, turn.push)) Fail("socket_loop: the peer closed the connection");
      Send(fd, buffer, kAnswer);
    }
    const double spent = Seconds(CLOCK_PROCESS_CPUTIME_ID) - begun;
    Send(fd, &spent, sizeof spent);
  }
  _exit(0);
}

void Work(int fd, const Turn& turn) {
  Buffers buffers(turn);
  Send(fd, &turn, sizeof turn);
  const double begun = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double began = Seconds(CLOCK_MONOTONIC);
  for (uint64_t step = 0; step < turn.steps; ++step) {
    char* buffer = buffers.of_step(step);
    Send(fd, buffer, turn.ask);
    if (!Receive(fd, buffer, turn.rows)) Fail("socket_loop: the peer closed the connection");
    Send(fd, buffer, turn.push);
    if (!Receive(fd, buffer, kAnswer)) Fail("socket_loop: the peer closed the connection");
  }
  const double wall = Seconds(CLOCK_MONOTONIC) - began;
  const double spent = Seconds(CLOCK_PROCESS_CPUTIME_ID) - begun;
  double of_server = 0;
  if (!Receive(fd, &of_server, sizeof of_server)) Fail("socket_loop: the peer closed the connection");
  std::printf("%.9f %.9f\n", spent + of_server, wall);
  std::fflush(stdout);
}

}  // namespace

int main() {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listening < 0 || bind(listening, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listening, 1) != 0 ||
      getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Fail("socket_loop: listen");
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) Fail("socket_loop: fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // or it would wait for the other end for ever, and keep the output open
    if (getppid() != parent) return 1;
    Serve(listening);
  }
  close(listening);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) Fail("socket_loop: connect");
  WithoutDelay(fd);
  Turn turn{};
  while (std::scanf("%lu %lu %lu %lu %lu", &turn.ask, &turn.rows, &turn.push, &turn.buffers, &turn.steps) == 5) {
    Work(fd, turn);
  }
  close(fd);
  return 0;
}
