#include "server/readers/filesystem_of.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace scalelab::server {
namespace {

constexpr char kMounts[] =
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    "30 27 0:22 / /home rw - autofs /etc/auto.home rw\n"
    "31 30 0:51 / /home/ann rw shared:7 master:2 - nfs4 files.lab.org:/export/ann rw,vers=4.2\n"
    "32 30 0:52 / /home/bob rw - nfs4 files.lab.org:/export/bob rw\n"
    "33 27 0:53 / /share rw - cifs //win.lab.org/share rw\n"
    "34 27 8:1 / /data rw - xfs /dev/sda1 rw\n"
    "35 27 8:1 /sub /bound rw - xfs /dev/sda1 rw\n"
    "36 34 0:54 / /data/my\\040runs rw - fuse /dev/fuse rw\n"
    "37 34 0:55 / /data rw - tmpfs tmpfs rw\n"
    "a line that is no mount\n";

TEST(FilesystemOf, IsTheServerOfANetworkMountOrTheDevice) {
  const auto of = [](const std::string& path) { return FilesystemOf(path, kMounts); };
  EXPECT_EQ(of("/"), "254:0");
  EXPECT_EQ(of("/var/lib/runs"), "254:0");
  EXPECT_EQ(of("/home/eve/runs"), "0:22");
  EXPECT_EQ(of("/home/ann/runs"), "files.lab.org");
  EXPECT_EQ(of("/home/bob"), "files.lab.org") << "both wait for one server";
  EXPECT_EQ(of("/share/x"), "win.lab.org");
  EXPECT_EQ(of("/bound/x"), "8:1");
  EXPECT_EQ(of("/data/my runs/1"), "0:54") << "\\040 is a space";
}

TEST(FilesystemOf, IsThatOfTheInnermostAndLastMount) {
  const auto of = [](const std::string& path) { return FilesystemOf(path, kMounts); };
  EXPECT_EQ(of("/data/x"), "0:55") << "it hides 8:1";
  EXPECT_EQ(of("/database"), "254:0") << "no part of a name";
  EXPECT_EQ(of("/data/../home/./ann//runs"), "files.lab.org");
  EXPECT_EQ(FilesystemOf("/x", ""), "");
}

TEST(FilesystemOf, KnowsTheMountsOfThisProcess) {
  const std::string root = FilesystemOf("/");
  EXPECT_NE(root, "");
  EXPECT_NE(FilesystemOf("/proc/self"), root);
}

}  // namespace
}  // namespace scalelab::server
