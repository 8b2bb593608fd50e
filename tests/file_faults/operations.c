// Stands between a process and its file system (LD_PRELOAD): counts the operations below one folder, makes a chosen
// one fail or be interrupted, and can write down everything that changes the folder, with the bytes, for a replay.
//
// Nothing is really synced: a test learns nothing from waiting for a disk. Used through operations.py, whose reader of
// the record has the same fields in the same order.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char folder[PATH_MAX];  // empty: nothing is watched
static long counted, chosen;   // the chosen operation is the one of this number; 0: none
static int failure;            // what it fails with; 0: it succeeds and the process is interrupted behind it
static int record_to = -1;
static char chosen_place[PATH_MAX + 16];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void faults_watch(const char* path) {
  snprintf(folder, sizeof folder, "%s", path);
  counted = chosen = 0;
}
void faults_choose(long number, int error) {
  counted = 0;
  chosen = number;
  failure = error;
  if (number) chosen_place[0] = 0;  // what the last one was can still be asked
}
long faults_counted(void) { return counted; }
const char* faults_place(void) { return chosen_place; }
void faults_record(int descriptor) { record_to = descriptor; }

#define REAL(name)               \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int is_watched(const char* path) {
  size_t length = strlen(folder);
  return length && !strncmp(path, folder, length) && (path[length] == 0 || path[length] == '/');
}

static const char* path_of(int descriptor, char* buffer) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, buffer, PATH_MAX - 1);
  buffer[size < 0 ? 0 : size] = 0;
  return buffer;
}

static const char* path_at(int at, const char* name, char* buffer) {
  if (name[0] == '/' || at == AT_FDCWD) return name;
  size_t length = strlen(path_of(at, buffer));
  snprintf(buffer + length, PATH_MAX - length, "/%s", name);
  return buffer;
}

// 1: the operation fails now, errno says how. 2: it happens, and the process is interrupted behind it.
static int fate(const char* operation, const char* path) {
  if (!folder[0] || !is_watched(path)) return 0;
  if (__sync_add_and_fetch(&counted, 1) != chosen) return 0;
  snprintf(chosen_place, sizeof chosen_place, "%s %s", operation, path + strlen(folder));
  if (failure == 0) return 2;
  errno = failure;
  return 1;
}

static void end(int decided) {
  int error = errno;
  if (decided == 2) kill(getpid(), SIGINT);
  errno = error;
}

static void put(const void* data, size_t size) { syscall(SYS_write, record_to, data, size); }

// kind, length of path, path, offset, length of data, data; where there is a second path it is the data.
static void record(char kind, const char* path, int64_t offset, const void* data, uint64_t size) {
  if (record_to < 0 || !is_watched(path)) return;
  int error = errno;
  uint32_t length = (uint32_t)strlen(path);
  pthread_mutex_lock(&mutex);
  put(&kind, 1), put(&length, 4), put(path, length), put(&offset, 8), put(&size, 8), put(data, size);
  pthread_mutex_unlock(&mutex);
  errno = error;
}

#define OPEN(name, parameters, arguments, at)                          \
  int name parameters {                                                \
    REAL(name);                                                        \
    char buffer[PATH_MAX];                                             \
    mode_t mode = 0;                                                   \
    if (flags & O_CREAT) {                                             \
      va_list rest;                                                    \
      va_start(rest, flags);                                           \
      mode = va_arg(rest, mode_t);                                     \
      va_end(rest);                                                    \
    }                                                                  \
    const char* full = path_at(at, path, buffer);                      \
    int decided = fate("open", full);                                  \
    if (decided == 1) return -1;                                       \
    int is_new = (flags & O_CREAT) && access(full, F_OK) != 0;         \
    int result = real arguments;                                       \
    if (result >= 0 && is_new) record('c', full, 0, "", 0);            \
    if (result >= 0 && (flags & O_TRUNC)) record('t', full, 0, "", 0); \
    end(decided);                                                      \
    return result;                                                     \
  }
OPEN(open, (const char* path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(open64, (const char* path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(openat, (int at, const char* path, int flags, ...), (at, path, flags, mode), at)
OPEN(openat64, (int at, const char* path, int flags, ...), (at, path, flags, mode), at)

#define TRANSFER(name, operation, kind, parameters, arguments, place)          \
  ssize_t name parameters {                                                    \
    REAL(name);                                                                \
    char path[PATH_MAX];                                                       \
    if (!folder[0]) return real arguments;                                     \
    int decided = fate(operation, path_of(descriptor, path));                  \
    if (decided == 1) return -1;                                               \
    int64_t begin = place;                                                     \
    ssize_t result = real arguments;                                           \
    if (result > 0 && kind) record(kind, path, begin, data, (uint64_t)result); \
    end(decided);                                                              \
    return result;                                                             \
  }
#define HERE lseek(descriptor, 0, SEEK_CUR)
TRANSFER(write, "write", 'w', (int descriptor, const void* data, size_t size), (descriptor, data, size), HERE)
TRANSFER(pwrite, "write", 'w', (int descriptor, const void* data, size_t size, off_t at), (descriptor, data, size, at),
         at)
TRANSFER(pwrite64, "write", 'w', (int descriptor, const void* data, size_t size, off64_t at),
         (descriptor, data, size, at), at)
TRANSFER(read, "read", 0, (int descriptor, void* data, size_t size), (descriptor, data, size), 0)
TRANSFER(pread, "read", 0, (int descriptor, void* data, size_t size, off_t at), (descriptor, data, size, at), at)
TRANSFER(pread64, "read", 0, (int descriptor, void* data, size_t size, off64_t at), (descriptor, data, size, at), at)

#define SYNC(name)                                                                     \
  int name(int descriptor) {                                                           \
    REAL(name);                                                                        \
    char path[PATH_MAX];                                                               \
    if (!folder[0] || !is_watched(path_of(descriptor, path))) return real(descriptor); \
    int decided = fate("sync", path);                                                  \
    if (decided == 1) return -1;                                                       \
    record('s', path, 0, "", 0);                                                       \
    end(decided);                                                                      \
    return 0;                                                                          \
  }
SYNC(fsync)
SYNC(fdatasync)

int ftruncate64(int descriptor, off64_t size) {
  REAL(ftruncate64);
  char path[PATH_MAX];
  int decided = fate("truncate", path_of(descriptor, path));
  if (decided == 1) return -1;
  int result = real(descriptor, size);
  if (result == 0) record('t', path, size, "", 0);
  end(decided);
  return result;
}

#define NAMES(name, operation, kind, parameters, arguments, full, other) \
  int name parameters {                                                  \
    REAL(name);                                                          \
    char first[PATH_MAX], second[PATH_MAX];                              \
    (void)first, (void)second;                                           \
    const char* path = full;                                             \
    const char* target = other;                                          \
    int decided = fate(operation, path);                                 \
    if (decided == 1) return -1;                                         \
    int result = real arguments;                                         \
    if (result == 0) record(kind, path, 0, target, strlen(target));      \
    end(decided);                                                        \
    return result;                                                       \
  }
NAMES(rename, "rename", 'r', (const char* from, const char* to), (from, to), from, to)
NAMES(renameat, "rename", 'r', (int a, const char* from, int b, const char* to), (a, from, b, to),
      path_at(a, from, first), path_at(b, to, second))
NAMES(link, "link", 'l', (const char* from, const char* to), (from, to), from, to)
NAMES(linkat, "link", 'l', (int a, const char* from, int b, const char* to, int flags), (a, from, b, to, flags),
      path_at(a, from, first), path_at(b, to, second))
NAMES(unlink, "unlink", 'u', (const char* name), (name), name, "")
NAMES(unlinkat, "unlink", 'u', (int at, const char* name, int flags), (at, name, flags), path_at(at, name, first), "")
NAMES(rmdir, "unlink", 'u', (const char* name), (name), name, "")
NAMES(mkdir, "mkdir", 'm', (const char* name, mode_t mode), (name, mode), name, "")
NAMES(mkdirat, "mkdir", 'm', (int at, const char* name, mode_t mode), (at, name, mode), path_at(at, name, first), "")

#define LOOK(name, type, failed, parameters, arguments, full) \
  type name parameters {                                      \
    REAL(name);                                               \
    char buffer[PATH_MAX];                                    \
    (void)buffer;                                             \
    int decided = fate("look", full);                         \
    if (decided == 1) return failed;                          \
    type result = real arguments;                             \
    end(decided);                                             \
    return result;                                            \
  }
LOOK(opendir, DIR*, NULL, (const char* name), (name), name)
LOOK(stat, int, -1, (const char* name, struct stat* status), (name, status), name)
LOOK(stat64, int, -1, (const char* name, struct stat64* status), (name, status), name)
LOOK(lstat, int, -1, (const char* name, struct stat* status), (name, status), name)
LOOK(lstat64, int, -1, (const char* name, struct stat64* status), (name, status), name)
LOOK(fstatat, int, -1, (int at, const char* name, struct stat* status, int flags), (at, name, status, flags),
     path_at(at, name, buffer))
LOOK(fstatat64, int, -1, (int at, const char* name, struct stat64* status, int flags), (at, name, status, flags),
     path_at(at, name, buffer))
