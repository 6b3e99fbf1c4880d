// Simulates the coordinator's reads of event files on the shared file system after the workers have ended. A
// read may be slow, fail or hang.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/core/event_reader.h"
#include "tests/simulation/ranks.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Process;

class EventFiles final : public server::EventReader {
 public:
  EventFiles(World& world, Process& process, const Directories& directories)
      : world_(world), process_(process), directories_(directories) {}

  void Read(server::EventRequest request, Done done) override;

  // Calls `check` for each attempt whose files were readable. `read` is whether the coordinator has read
  // them. `lines` is the number of lines that each rank had written when the coordinator began to read, or in
  // total if it did not read them.
  void ForEachReadable(const std::function<void(const std::string& token, const std::vector<int64_t>& lines,
                                                bool read)>& check) const;

 private:
  absl::StatusOr<server::EventPart> PartOf(server::EventRequest request);

  World& world_;
  Process& process_;
  const Directories& directories_;
  std::map<std::string, std::vector<int64_t>> lines_at_first_read_;  // by token
  std::set<std::string> unreadable_;                                 // tokens
};

}  // namespace scalelab::simulation
