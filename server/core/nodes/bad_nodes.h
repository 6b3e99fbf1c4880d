// Finds nodes that new jobs should avoid, because attempts fail there repeatedly and succeed on other nodes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "db/records.h"

namespace scalelab::server {

struct BadNodesLimits {
  int failures = 3;  // number of consecutive failures after which a node is avoided
  // Time for which a node is avoided. It doubles each time, until an attempt has succeeded on the node.
  db::Micros first = 1'800'000'000, longest = 86'400'000'000;
  db::Micros forget =
      7 * db::Micros{86'400'000'000};  // time without a failure after which earlier failures are forgotten
  size_t most_avoided = 16;            // number of avoided nodes: those with the most recent failures
  size_t most_known = 1024;            // number of nodes with failures; the oldest are forgotten first
};

// A node that is avoided now.
struct AvoidedNode {
  std::string name;
  std::string reason;  // cause of the last failure, and its message if there is one
  int failures = 0;    // number of consecutive failures
  db::Micros since = 0, until = 0;
};

// Counts failures by node. The counts are only in memory, so after a restart no node is avoided. No I/O
// and no clock.
//
// A failure of an attempt on several nodes counts for each of them, and a success resets the count of
// each of its nodes. Therefore only bad nodes keep high counts. A failure counts only if an attempt of
// the same study has succeeded, on other nodes or earlier. If all attempts of a study fail, the study
// itself may be the cause.
class BadNodes {
 public:
  explicit BadNodes(BadNodesLimits limits = {}) : limits_(limits) {}

  // Returns whether a node may have caused a failure with this cause.
  static bool SpeaksAgainstNode(db::Cause cause);

  // Record the end of an attempt on `nodes`, which are names separated by commas. `works` is true if an
  // attempt of the study has succeeded. Everybody may read `message`.
  void Failed(const std::string& nodes, int64_t study_id, bool works, db::Cause cause,
              const std::string& message, db::Micros now);
  void Succeeded(const std::string& nodes, int64_t study_id, db::Micros now);

  // Returns the nodes that are avoided at `now`, ordered by name.
  std::vector<AvoidedNode> Avoided(db::Micros now) const;

 private:
  struct Node {
    int failures = 0;                    // consecutive failures of studies with a successful attempt
    std::map<int64_t, int> unexplained;  // failures of studies without a successful attempt, by study
    std::string reason;
    db::Micros last = 0;  // time of the last failure
    int times = 0;        // how often the node was avoided since its last success
    db::Micros since = 0, until = 0;
  };
  void Judge(Node& node, db::Micros now);
  void ForgetOldest();

  BadNodesLimits limits_;
  std::map<std::string, Node> nodes_;  // nodes with failures, by name
};

}  // namespace scalelab::server
