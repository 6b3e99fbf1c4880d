#include "catalog/image_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace scalelab {
namespace {

constexpr char kLayout[] = "the layout of imagefolder is DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg";
constexpr char kMagic[] = "scalelab-index 2 ";

using FileNames = std::vector<std::string>;

std::string PartDirectory(const std::string& dir, ImagePart part) {
  return absl::StrCat(dir, part == ImagePart::kTrain ? "/train" : "/val");
}

std::string IndexPath(const std::string& dir, ImagePart part) { return PartDirectory(dir, part) + ".index"; }

bool IsImageName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".jpg") || absl::EndsWithIgnoreCase(name, ".jpeg") ||
         absl::EndsWithIgnoreCase(name, ".png");
}

// Returns the sorted names of the directories in `path`, or of all other entries. Skips names that start
// with a dot.
absl::StatusOr<FileNames> List(const std::string& path, bool directories) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (!dir) {
    if (errno == ENOENT || errno == ENOTDIR)
      return absl::NotFoundError(absl::StrCat("directory ", path, " does not exist; ", kLayout));
    return absl::InvalidArgumentError(absl::StrCat(
        "directory ", path, " cannot be read: ", std::strerror(errno), "; check its permissions"));
  }
  FileNames names;
  errno = 0;
  while (const dirent* entry = readdir(dir.get())) {
    if (entry->d_name[0] == '.') continue;
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK) {
      struct stat st;
      is_directory = stat(absl::StrCat(path, "/", entry->d_name).c_str(), &st) == 0 && S_ISDIR(st.st_mode);
    }
    if (is_directory == directories) names.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("directory ", path, " cannot be listed: ", std::strerror(errno)));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the number of class `name`, or nothing.
std::optional<int> Find(const FileNames& classes, absl::string_view name) {
  const auto it = std::lower_bound(classes.begin(), classes.end(), name);
  if (it == classes.end() || *it != name) return std::nullopt;
  return static_cast<int>(it - classes.begin());
}

absl::Status UnknownClass(const std::string& directory, absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(directory, "/", name, " is not a class, because train/",
                                                 name,
                                                 " does not exist; remove it, or add its training images"));
}

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

// The times of a directory when it was listed. A new or removed entry changes `modified` (mtime). A directory
// that is moved to the place of another one has other times than that one, even if it is older: programs that
// preserve times cannot set `changed` (ctime).
struct DirectoryTimes {
  std::string name;                   // of the class; empty for the directory of the part
  int64_t modified = 0, changed = 0;  // ns since 1970

  bool operator==(const DirectoryTimes&) const = default;
};

// Returns the present times of a directory, or nothing if it is missing.
std::optional<DirectoryTimes> TimesOf(const std::string& directory, absl::string_view name) {
  struct stat st;
  if (stat(absl::StrCat(directory, "/", name).c_str(), &st) != 0) return std::nullopt;
  return DirectoryTimes{std::string(name), Nanoseconds(st.st_mtim), Nanoseconds(st.st_ctim)};
}

// Appends the times of all directories to `times`, if it is not null, each before the directory is listed.
absl::StatusOr<ImageList> ListByDirectories(const std::string& directory, ImagePart part,
                                            const FileNames& classes, std::vector<DirectoryTimes>* times) {
  const auto remember = [&](absl::string_view name) {
    if (times == nullptr) return;
    if (std::optional<DirectoryTimes> now = TimesOf(directory, name)) times->push_back(*std::move(now));
  };
  remember("");
  const absl::StatusOr<FileNames> present = List(directory, true);
  if (!present.ok()) return present.status();
  ImageList list(directory, classes);
  for (const std::string& name : *present) {
    const std::optional<int> label = Find(classes, name);
    if (!label) return UnknownClass(directory, name);
    const std::string path = absl::StrCat(directory, "/", name);
    remember(name);
    const absl::StatusOr<FileNames> files = List(path, false);
    if (!files.ok()) return files.status();
    const int64_t before = list.size();
    for (const std::string& file : *files) {
      if (IsImageName(file)) list.Add(*label, file, -1);
    }
    if (part == ImagePart::kTrain && list.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " holds no image (.jpg, .jpeg or .png); put some there, or remove it"));
    }
  }
  if (list.size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " has no images in directories of classes; ", kLayout));
  }
  return list;
}

// Returns whether no file was added or removed, and no directory was replaced, since the directories were
// listed for an index.
bool IsFresh(const struct stat& index, const std::string& directory,
             const std::vector<DirectoryTimes>& times) {
  return std::ranges::all_of(times, [&](const DirectoryTimes& listed) {
    // Changes within the resolution of the filesystem's clock leave the times as they are. So an index is not
    // used if it was written that soon after a change.
    return TimesOf(directory, listed.name) == listed && listed.modified < Nanoseconds(index.st_mtim);
  });
}

// Returns the images of an index, or nothing if the index is missing, incomplete or outdated.
std::optional<ImageList> ReadIndex(const std::string& path, const std::string& directory,
                                   const FileNames& classes) {
  struct stat st;
  std::ifstream file(path, std::ios::binary);
  if (!file || stat(path.c_str(), &st) != 0) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  const std::string content = std::move(text).str();
  absl::string_view rest = content;
  const auto next_line = [&rest]() -> std::optional<absl::string_view> {
    const size_t end = rest.find('\n');
    if (end == absl::string_view::npos) return std::nullopt;
    const absl::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return line;
  };
  const auto head = next_line();
  if (!head || !absl::StartsWith(*head, kMagic)) return std::nullopt;
  const std::vector<absl::string_view> counts = absl::StrSplit(head->substr(strlen(kMagic)), ' ');
  int64_t directories = 0, count = 0;
  if (counts.size() != 2 || !absl::SimpleAtoi(counts[0], &directories) || directories < 1 ||
      !absl::SimpleAtoi(counts[1], &count))
    return std::nullopt;
  std::vector<DirectoryTimes> times;
  for (int64_t i = 0; i < directories; ++i) {
    const auto line = next_line();
    const std::vector<absl::string_view> fields = absl::StrSplit(line.value_or(""), '\t');
    DirectoryTimes& listed = times.emplace_back();
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &listed.modified) ||
        !absl::SimpleAtoi(fields[1], &listed.changed))
      return std::nullopt;
    listed.name = std::string(fields[2]);
  }
  ImageList list(directory, classes);
  absl::string_view last;
  std::optional<int> label;
  while (const auto line = next_line()) {
    const std::vector<absl::string_view> fields = absl::StrSplit(*line, '\t');
    int64_t bytes = 0;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &bytes)) return std::nullopt;
    if (!label || fields[1] != last) label = Find(classes, last = fields[1]);
    if (!label) return std::nullopt;
    list.Add(*label, fields[2], bytes);
  }
  if (list.size() != count || count == 0 || !IsFresh(st, directory, times)) return std::nullopt;
  return list;
}

// Writes the lines of an index.
absl::Status WriteLines(const ImageList& list, const std::vector<DirectoryTimes>& times, std::ostream& out) {
  out << kMagic << times.size() << ' ' << list.size() << '\n';
  for (const DirectoryTimes& listed : times)
    out << listed.modified << '\t' << listed.changed << '\t' << listed.name << '\n';
  for (int64_t i = 0; i < list.size(); ++i) {
    struct stat st;
    if (stat(list.path(i).c_str(), &st) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(list.path(i), " cannot be read: ", std::strerror(errno)));
    }
    const std::string& name = list.classes()[list.label(i)];
    if (absl::StrCat(name, list.name(i)).find_first_of("\t\n") != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(list.path(i), " has a tab or a line break in its name; rename it"));
    }
    out << st.st_size << '\t' << name << '\t' << list.name(i) << '\n';
  }
  return absl::OkStatus();
}

absl::Status WriteIndex(const std::string& path, const ImageList& list,
                        const std::vector<DirectoryTimes>& times) {
  const std::string beside = path + ".new";
  std::ofstream out(beside, std::ios::binary);
  absl::Status written = out ? WriteLines(list, times, out) : absl::OkStatus();
  out.close();
  if (written.ok() && (!out || std::rename(beside.c_str(), path.c_str()) != 0)) {
    written = absl::PermissionDeniedError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno),
                     "; the index is written next to the train and val directories"));
  }
  if (!written.ok()) std::remove(beside.c_str());
  return written;
}

}  // namespace

absl::string_view ImageList::name(int64_t image) const {
  const uint64_t begin = image == 0 ? 0 : images_[image - 1].name_end;
  return absl::string_view(names_).substr(begin, images_[image].name_end - begin);
}

std::string ImageList::path(int64_t image) const {
  return absl::StrCat(directory_, "/", classes_[label(image)], "/", name(image));
}

void ImageList::Add(int label, absl::string_view name, int64_t bytes) {
  absl::StrAppend(&names_, name);
  images_.push_back({names_.size(), bytes, label});
}

absl::StatusOr<std::vector<std::string>> ListImageClasses(const std::string& dir) {
  if (dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no directory is given for data set imagefolder; set data_dir: ", kLayout));
  }
  struct stat st;
  if (stat(dir.c_str(), &st) != 0) {
    return absl::NotFoundError(
        absl::StrCat("directory ", dir, " does not exist; check data_dir, as the nodes see it"));
  }
  absl::StatusOr<FileNames> classes = List(PartDirectory(dir, ImagePart::kTrain), true);
  if (classes.ok() && classes->size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(PartDirectory(dir, ImagePart::kTrain), " has ",
                                                   classes->empty() ? "no directories" : "one directory",
                                                   ", but at least two classes are required; ", kLayout));
  }
  constexpr size_t kMostClasses = 65'536;  // labels have 16 bits
  if (classes.ok() && classes->size() > kMostClasses) {
    return absl::InvalidArgumentError(absl::StrCat(PartDirectory(dir, ImagePart::kTrain), " has ",
                                                   classes->size(), " classes; at most ", kMostClasses,
                                                   " are possible"));
  }
  return classes;
}

absl::StatusOr<ImageList> ListImages(const std::string& dir, ImagePart part) {
  const absl::StatusOr<FileNames> classes = ListImageClasses(dir);
  if (!classes.ok()) return classes.status();
  const std::string directory = PartDirectory(dir, part);
  if (std::optional<ImageList> list = ReadIndex(IndexPath(dir, part), directory, *classes))
    return *std::move(list);
  return ListByDirectories(directory, part, *classes, nullptr);
}

absl::StatusOr<int64_t> WriteImageIndex(const std::string& dir) {
  const absl::StatusOr<FileNames> classes = ListImageClasses(dir);
  if (!classes.ok()) return classes.status();
  int64_t images = 0;
  for (ImagePart part : {ImagePart::kTrain, ImagePart::kVal}) {
    std::vector<DirectoryTimes> times;
    const absl::StatusOr<ImageList> list =
        ListByDirectories(PartDirectory(dir, part), part, *classes, &times);
    if (!list.ok()) return list.status();
    if (absl::Status written = WriteIndex(IndexPath(dir, part), *list, times); !written.ok()) return written;
    images += list->size();
  }
  return images;
}

absl::Status CheckImageFolder(const std::string& dir) {
  const absl::StatusOr<FileNames> classes = ListImageClasses(dir);
  if (!classes.ok()) return classes.status();
  const std::string val = PartDirectory(dir, ImagePart::kVal);
  const absl::StatusOr<FileNames> present = List(val, true);
  if (!present.ok()) return present.status();
  if (present->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(val, " has no directories of classes; put each image into the directory of its class"));
  }
  for (const std::string& name : *present) {
    if (!Find(*classes, name)) return UnknownClass(val, name);
  }
  return absl::OkStatus();
}

}  // namespace scalelab
