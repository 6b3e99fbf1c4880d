// Nodes that new jobs should avoid, because attempts fail there again and again and succeed elsewhere.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "db/records.h"

namespace scalelab::server {

struct BadNodesLimits {
  int failures = 3;  // in a row on a node, after which it is avoided
  // Time for which it is avoided: twice as long each time, until an attempt has succeeded there.
  db::Micros first = 1'800'000'000, longest = 86'400'000'000;
  db::Micros forget =
      7 * db::Micros{86'400'000'000};  // a node without a failure for this time is as good as new
  size_t most_avoided = 16;            // those with the most recent failures; the others may be used
  size_t most_known = 1024;  // nodes with failures; the one whose last failure is the oldest is forgotten
};

// A node that is avoided now.
struct AvoidedNode {
  std::string name;
  std::string reason;  // cause and message of the last failure
  int failures = 0;    // in a row
  db::Micros since = 0, until = 0;
};

// Counts failures by node, in memory only: after a restart all nodes are good. Pure, as the rest of the decisions.
//
// A failure on several nodes counts for each of them, and a success ends the count of each, so that only the bad one of
// them remains. A study whose attempts fail everywhere says nothing about nodes: a failure counts only if an attempt of its
// study has succeeded, elsewhere or before.
class BadNodes {
 public:
  explicit BadNodes(BadNodesLimits limits = {}) : limits_(limits) {}

  // Returns whether a failure with this cause may be the fault of a node.
  static bool SpeaksAgainstNode(db::Cause cause);

  // Records the end of an attempt on `nodes`, names separated by commas. `works`: an attempt of the study has succeeded.
  void Failed(const std::string& nodes, int64_t study_id, bool works, db::Cause cause,
              const std::string& message, db::Micros now);
  void Succeeded(const std::string& nodes, int64_t study_id, db::Micros now);

  // Returns the nodes that are avoided at `now`, ordered by name.
  std::vector<AvoidedNode> Avoided(db::Micros now) const;

 private:
  struct Node {
    int failures = 0;                    // in a row, of studies that work
    std::map<int64_t, int> unexplained;  // failures of studies of which no attempt has succeeded yet
    std::string reason;
    db::Micros last = 0;  // failure
    int times = 0;        // that it was avoided without a success in between
    db::Micros since = 0, until = 0;
  };
  void Judge(Node& node, db::Micros now);
  void ForgetOldest();

  BadNodesLimits limits_;
  std::map<std::string, Node> nodes_;  // with failures
};

}  // namespace scalelab::server
