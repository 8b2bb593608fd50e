// A library for LD_PRELOAD: writes and syncs below FAIL_FOLDER fail with EIO while the file FAIL_SWITCH exists. Where it says "once", the
// first of them takes the file away, so that the next ones succeed; where it says "full", they fail with ENOSPC. With FAIL_PROCESS, they
// fail only in processes whose command line matches that pattern.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_below(int descriptor, const char* folder) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

static int is_chosen(void) {
  const char* pattern = getenv("FAIL_PROCESS");
  if (pattern == NULL) return 1;
  char line[4096];
  const int file = open("/proc/self/cmdline", O_RDONLY);
  ssize_t size = read(file, line, sizeof line - 1);
  close(file);
  while (size > 0 && line[size - 1] == 0) --size;
  if (size <= 0) return 0;
  for (ssize_t i = 0; i < size; ++i) {
    if (line[i] == 0) line[i] = ' ';
  }
  line[size] = 0;
  return fnmatch(pattern, line, 0) == 0;
}

static int fails(int descriptor) {
  const char *folder = getenv("FAIL_FOLDER"), *path = getenv("FAIL_SWITCH");
  if (folder == NULL || path == NULL || access(path, F_OK) != 0 || !is_below(descriptor, folder) || !is_chosen()) return 0;
  const int file = open(path, O_RDONLY);
  char text[8] = "";
  if (read(file, text, 4) == 4 && strcmp(text, "once") == 0) unlink(path);
  close(file);
  errno = strcmp(text, "full") == 0 ? ENOSPC : EIO;
  return 1;
}

#define REAL(name) static __typeof__(&name) real; if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int descriptor, const void* data, size_t size) {
  REAL(write);
  return fails(descriptor) ? -1 : real(descriptor, data, size);
}
ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  REAL(pwrite);
  return fails(descriptor) ? -1 : real(descriptor, data, size, offset);
}
int fsync(int descriptor) {
  REAL(fsync);
  return fails(descriptor) ? -1 : real(descriptor);
}
