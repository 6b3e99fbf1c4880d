// Study files: converts YAML to a StudySpec and keeps the position of every field, so that later errors can
// name the line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scalelab/v1/study.pb.h"
#include "study/file/position.h"
#include "study/rules.h"

namespace scalelab {

// A section that a study file gets if it does not have it.
struct DefaultSection {
  std::string key;    // of the section, such as "notify"
  std::string value;  // YAML
  std::string place;  // where it was written, for errors: "PATH:LINE: KEY"
};

struct StudyFile {
  std::string path;              // as given by the user
  std::vector<std::string> set;  // values that replace those of the file, see study/file/overrides.h
  scalelab::v1::StudySpec spec;  // without defaults
  std::map<std::string, Position>
      positions;  // by field path: "matrix.engine[1]", "scaling.global_batch"; "" is the whole file. Line -i: set[i],
                  // then defaults[i - set.size()]
  std::vector<DefaultSection> defaults;  // those that were added
  std::string text;                      // as it was read
};

// Reads and converts a study file. Checks only the structure of the file: keys are known and unique, and
// typed fields of the specification have values of their type. ExpandStudy checks the values.
//
// A relative data_dir is made absolute, relative to the directory of the study file, because the coordinator
// and the nodes do not share the client's working directory. Everything else stays as written.
//
// The section `checkpoint: {every: 10m, keep: 2}` becomes keys of `fixed`: checkpoint_every_minutes (with a number of
// steps: checkpoint_every_steps) and checkpoint_keep. `positions` has both names of each.
//
// `time` accepts seconds (1800), units ("30m", "1h30m", "2d") and Slurm's forms with colons or a dash
// ("MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS").
//
// `path` "-" reads standard input. `set` has values that replace those of the file (study/file/overrides.h).
//
// Returns INVALID_ARGUMENT with every problem, one per line in file order: "FILE:LINE:COLUMN: sentence"
// ("FILE: sentence" if the problem concerns the whole file, "--set KEY: sentence" if it concerns a value of `set`,
// "PLACE: sentence" if it concerns a default section).
// Returns NOT_FOUND if the file does not exist.
absl::StatusOr<StudyFile> ReadStudyFile(const std::string& path, const std::vector<std::string>& set = {});

// Like ReadStudyFile, for the contents of a file that is on another machine: relative paths stay relative, so the server
// refuses them. Errors name the file `name`.
absl::StatusOr<StudyFile> ReadStudyText(const std::string& text, const std::string& name);

// Adds file positions to an error of ExpandStudy or of the server. Every violation becomes a line
// "FILE:LINE:COLUMN: sentence", in file order, at the longest prefix of its field path that occurs in the
// file. Keeps the code and the details. A status without violations is returned unchanged.
absl::Status Locate(const StudyFile& file, const absl::Status& status);

// Returns whether each line of the error starts with a position, "FILE:LINE:COLUMN: ", "FILE: " or "--set KEY: ": true for the errors of
// this header's functions.
bool IsLocated(const absl::Status& status);

struct CheckedStudyFile {
  StudyFile file;
  ExpandedStudy study;
};

// Runs all checks that need no server: ReadStudyFile, ExpandStudy and Locate. Returns the problems of all of
// them in one error. Adds those of `defaults` whose keys neither the file nor `set` has.
absl::StatusOr<CheckedStudyFile> CheckStudyFile(const std::string& path,
                                                const std::vector<std::string>& set = {},
                                                const std::vector<DefaultSection>& defaults = {});

}  // namespace scalelab
