#include "tests/fakes/hanging_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

constexpr int kPatienceMs = 10'000;

// Answers the kernel's first request, FUSE_INIT.
absl::Status AnswerInit(int fd) {
  std::vector<char> buffer(FUSE_MIN_READ_BUFFER);
  pollfd readable{fd, POLLIN, 0};
  if (poll(&readable, 1, kPatienceMs) != 1)
    return absl::DeadlineExceededError("the kernel sends no FUSE_INIT");
  const ssize_t got = read(fd, buffer.data(), buffer.size());
  if (got < static_cast<ssize_t>(sizeof(fuse_in_header) + sizeof(fuse_init_in)))
    return absl::ErrnoToStatus(errno, "cannot read FUSE_INIT");
  const auto* header = reinterpret_cast<const fuse_in_header*>(buffer.data());
  struct {
    fuse_out_header header{};
    fuse_init_out init{};
  } answer;
  answer.header.len = sizeof answer;
  answer.header.unique = header->unique;
  answer.init.major = FUSE_KERNEL_VERSION;
  answer.init.minor = FUSE_KERNEL_MINOR_VERSION;
  answer.init.max_write = 4096;
  if (write(fd, &answer, sizeof answer) != sizeof answer)
    return absl::ErrnoToStatus(errno, "cannot answer FUSE_INIT");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HangingDirectory>> HangingDirectory::Mount(const std::string& directory) {
  const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open /dev/fuse");
  const std::string options = absl::StrCat("fd=", fd, ",rootmode=40000,user_id=0,group_id=0,allow_other");
  if (mount("hanging", directory.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    const absl::Status failed = absl::ErrnoToStatus(errno, "cannot mount over " + directory);
    close(fd);
    return failed;
  }
  std::unique_ptr<HangingDirectory> hanging(new HangingDirectory(directory, fd));
  if (absl::Status status = AnswerInit(fd); !status.ok()) return status;
  return hanging;
}

bool HangingDirectory::blocks() const {
  pollfd readable{fd_, POLLIN, 0};
  return poll(&readable, 1, 0) == 1;
}

HangingDirectory::~HangingDirectory() {
  close(fd_);  // ends all blocked calls with ENOTCONN
  umount2(directory_.c_str(), MNT_DETACH);
}

}  // namespace scalelab
