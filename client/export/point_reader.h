// Reads the points of many runs from the server.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session/connection.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// Reads the points of several runs concurrently, before the caller asks for them. The caller gets the runs in
// order. Stores a limited number of points.
class PointReader {
 public:
  using Take = std::function<absl::Status(const scalelab::v1::ReadPointsResponse&)>;

  // `timeout` applies to each run.
  PointReader(Connection& server, std::vector<std::string> runs, absl::Duration timeout);
  // Cancels the calls in flight.
  ~PointReader();
  PointReader(const PointReader&) = delete;
  PointReader& operator=(const PointReader&) = delete;

  // Passes the points of the next run to `take`. Blocks until all points of the run have been read. Returns
  // the first error of `take` or of the RPC. Call Next once for each run, and not after an error of `take`.
  absl::Status Next(const Take& take);

 private:
  // A run whose points are being read.
  struct Reading {
    std::deque<scalelab::v1::ReadPointsResponse> parts;
    bool ended = false;
    absl::Status status;                     // result of the call, once it has ended
    grpc::ClientContext* context = nullptr;  // of the call; null once it has ended
  };

  void Run();
  absl::Status ReadOne(size_t run, grpc::ClientContext* context);
  bool Put(size_t run, scalelab::v1::ReadPointsResponse part);

  Connection& server_;
  const std::vector<std::string> runs_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  size_t begun_ = 0;  // runs whose calls have begun
  size_t taken_ = 0;  // calls of Next; the last one returns run taken_ - 1
  size_t held_ = 0;   // sum of SizeOf over the parts that wait for the caller
  bool stop_ = false;
  std::map<size_t, Reading> reading_;  // by run
  std::vector<std::thread> threads_;
};

}  // namespace scalelab::client
