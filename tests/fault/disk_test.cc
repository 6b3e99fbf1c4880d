// A full disk: a study that cannot be stored durably is refused with a reason, accepted studies are kept, and
// the service continues when there is free space again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

TEST(FullDisk, RefusesWithAReasonAndGoesOnWhenThereIsRoom) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a small file system";
  Service service({"--local-slots", "1"});
  std::filesystem::create_directory(service.data());
  if (mount("tmpfs", service.data().c_str(), "tmpfs", 0, "size=4m,mode=700") != 0) {
    GTEST_SKIP() << "may not mount here";
  }
  ASSERT_EQ(service.Start(), "");
  const std::string yaml =
      "study: many\nfixed: {model: resnet8, dataset: synthetic, max_steps: 1}\n"
      "measure: {evaluate: false}\nmatrix: {ranks: "
      "[1]}\nrepeats: ";
  const std::string first = service.Submit(yaml + "1\n");
  EXPECT_EQ(service.WaitFor(first, 60), 0);

  const std::string ballast = service.data() + "/ballast";
  struct statvfs room {};
  statvfs(service.data().c_str(), &room);
  WriteFile(ballast, std::string(room.f_bavail * room.f_bsize, 'x'));
  const Output refused = service.Run({"study", "submit", service.File("many.yaml", yaml + "20000\n")});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, testing::HasSubstr("disk"));
  EXPECT_EQ(service.Json({"study", "list"})["studies"].size(), 1u);

  std::filesystem::remove(ballast);
  const std::string later = service.Submit(yaml + "2\n");
  EXPECT_EQ(service.WaitFor(later, 60), 0);
  EXPECT_EQ(service.Json({"study", "list"})["studies"].size(), 2u);
  EXPECT_EQ(service.Stop(), 0);
  ASSERT_EQ(service.Start(), "");
  EXPECT_EQ(service.Json({"study", "list"})["studies"].size(), 2u);
  service.Kill();
  umount2(service.data().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace scalelab::e2e
