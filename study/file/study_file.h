// Study files: YAML to StudySpec, with the place of everything, so that an error anywhere later can name the
// line.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "study/file/position.h"
#include "study/rules.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

struct StudyFile {
  std::string path;              // as given
  scalelab::v1::StudySpec spec;  // defaults not filled in
  std::map<std::string, Position>
      positions;  // by field path: "matrix.engine[1]", "scaling.global_batch"; "" is the top
};

// Reads and converts a study file. What a value may be is not looked at here, only that the file has the
// shape of a study: known keys, none twice, and where the specification has a typed field, a value of its
// type.
//
// A relative data_dir is made absolute, seen from the study file's directory: the coordinator and the nodes
// do not share the client's working directory. Everything else stays as written.
//
// `time` takes seconds (1800), units ("30m", "1h30m", "2d") and Slurm's forms with colons or a dash ("MM:SS",
// "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS").
//
// INVALID_ARGUMENT with every problem found, a line each in file order: "FILE:LINE:COLUMN: sentence" (or
// "FILE: sentence" when the file as a whole is wrong); NOT_FOUND when there is no such file.
absl::StatusOr<StudyFile> ReadStudyFile(const std::string& path);

// An error of ExpandStudy or of the server in the file's own terms: every violation becomes a line
// "FILE:LINE:COLUMN: sentence", in file order, at the longest part of its field path that stands in the file.
// Code and details stay. A status without violations comes back as it is.
absl::Status Locate(const StudyFile& file, const absl::Status& status);

struct CheckedStudyFile {
  StudyFile file;
  ExpandedStudy study;
};

// Everything that can be checked without a server: ReadStudyFile, ExpandStudy and Locate, with all problems
// of both in one error.
absl::StatusOr<CheckedStudyFile> CheckStudyFile(const std::string& path);

}  // namespace scalelab::client
