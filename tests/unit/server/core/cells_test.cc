// Tests that cells are the same after they were stored and read, and how much space they take.
#include "server/cells/cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "catalog/run_parameters.h"
#include "db/sqlite_store.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/core/convert.h"
#include "server/core/reload.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;
using testing::SizeIs;

void AddAxis(v1::StudySpec& spec, const std::string& key, const std::vector<double>& values) {
  auto* axis = spec.add_matrix();
  axis->set_key(key);
  for (const double value : values) axis->add_values()->set_number_value(value);
}

// Cells with numbers that have no short decimal form, a command that JSON has to escape, excluded cells and baselines.
v1::StudySpec Various() {
  v1::StudySpec spec = World::Spec({1, 2, 4});
  AddAxis(spec, "learning_rate", {0.1 + 0.2, 1e-17, 3});
  AddAxis(spec, "params.dropout", {0.1, 0.5});
  (*spec.mutable_fixed()->mutable_fields())["params.name"].set_string_value("\xc3\xa9 \"a\"");
  (*spec.mutable_fixed()->mutable_fields())["env.NCCL_ALGO"].set_string_value("Ring");
  auto* engines = spec.add_matrix();
  engines->set_key("engine");
  for (const char* engine : {"native/ddp", "native/horovod"}) engines->add_values()->set_string_value(engine);
  (*spec.add_exclude()->mutable_fields())["ranks"].set_number_value(4);
  spec.mutable_measure()->set_communication(true);
  spec.mutable_lr()->set_rule(v1::LearningRate::SQRT);
  spec.set_seed(int64_t{1} << 60);
  auto& command = *(*spec.mutable_fixed()->mutable_fields())["command"].mutable_list_value();
  for (const char* text : {"sh", "-c", "echo \"\\n\" \t'\xc3\xa9' \x01"})
    command.add_values()->set_string_value(text);
  return spec;
}

void ExpectEqual(const Cell& a, const Cell& b) {
  EXPECT_TRUE(MessageDifferencer::Equals(a.spec, b.spec)) << a.spec.ShortDebugString() << "\n"
                                                          << b.spec.ShortDebugString();
  EXPECT_TRUE(MessageDifferencer::Equals(a.key, b.key)) << a.key.ShortDebugString();
}

TEST(Cells, AreReadAsTheyWereStored) {
  const ExpandedStudy study = *ExpandStudy(Various());
  ASSERT_GT(study.baselines, 0);
  ASSERT_FALSE(study.excluded.empty());
  const NewStudy made = MakeNewStudy(Various(), study, "ann", "");
  const auto read = ReadCells(made.cell_values, made.cells);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(study.cells.size() + study.excluded.size()));
  for (size_t i = 0; i < read->size(); ++i) {
    SCOPED_TRACE(i);
    const bool excluded = i >= study.cells.size();
    const Cell expected = excluded ? study.excluded[i - study.cells.size()] : study.cells[i];
    ExpectEqual((*read)[i], expected);
    const db::CellRow& row = made.cells[i];
    EXPECT_EQ(row.excluded, excluded);
    EXPECT_EQ(std::tie(row.engine, row.model, row.precision, row.backend),
              std::tie(expected.spec.engine(), expected.spec.model(), expected.spec.precision(),
                       expected.spec.backend()));
    EXPECT_EQ(row.ranks, expected.spec.ranks());
    EXPECT_EQ(row.global_batch, expected.spec.global_batch());
    EXPECT_EQ(read->NeedsOf(i).ranks, expected.spec.ranks());
  }
}

TEST(Cells, ASelectionIsReadWithOnlyItsOwnValues) {
  const NewStudy made = MakeNewStudy(Various(), *ExpandStudy(Various()), "ann", "");
  const std::vector<db::CellRow> two = {made.cells[5], made.cells[2]};
  const std::vector<int> numbers = NumbersOf(two);
  EXPECT_EQ(numbers.front(), 0);
  std::vector<db::CellValueRow> values;
  for (const int number : numbers) values.push_back(made.cell_values[number]);
  EXPECT_LT(values.size(), made.cell_values.size());
  const auto read = ReadCells(values, two);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectEqual((*read)[0], made.state->cells[5]);
  ExpectEqual((*read)[1], made.state->cells[2]);
}

// A newer version may have other defaults.
TEST(Cells, WhatIsStoredNamesEveryParameterOfTheFirstCell) {
  const NewStudy made = MakeNewStudy(World::Spec({2}), *ExpandStudy(World::Spec({2})), "ann", "");
  v1::RunSpec common;
  ASSERT_TRUE(FromJson(made.cell_values[0].value, &common).ok());
  for (const RunParameter& parameter : RunParameters()) {
    if (parameter.type == ParameterType::kMap)
      continue;  // has no default: an absent one is empty in every version
    const std::string name = "\"" + std::string(parameter.name) + "\":";
    EXPECT_THAT(made.cell_values[0].value, HasSubstr(name));
  }
}

// Versions before schema 5 stored whole cells.
TEST(Cells, OfOlderVersionsAreReadToo) {
  const ExpandedStudy study = *ExpandStudy(Various());
  std::vector<db::CellRow> rows;
  for (const Cell& cell : study.cells) {
    db::CellRow& row = rows.emplace_back();
    row.key = ToJson(cell.key);
    row.spec = ToFullJson(cell.spec);
  }
  EXPECT_EQ(NumbersOf(rows), std::vector<int>{0});
  const auto read = ReadCells({}, rows);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(*read, SizeIs(study.cells.size()));
  for (size_t i = 0; i < rows.size(); ++i) ExpectEqual((*read)[i], study.cells[i]);
}

TEST(Cells, DamagedRowsAreReported) {
  const NewStudy made = MakeNewStudy(Various(), *ExpandStudy(Various()), "ann", "");
  const auto expect_damaged = [](const auto& values, const auto& rows) {
    const absl::Status status = ReadCells(values, rows).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("restore a backup"));
  };
  for (size_t number = 0; number < made.cell_values.size(); ++number) {
    std::vector<db::CellValueRow> values = made.cell_values;
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(number));
    expect_damaged(values, made.cells);
  }
  for (const char* text : {"", "[", "1", "[0]", "[-1]", "[999999999]", "[1,]", "[a]", "{", "{\"ranks\":"}) {
    std::vector<db::CellRow> rows = made.cells;
    rows[1].spec = text;
    expect_damaged(made.cell_values, rows);
  }
  for (const char* text : {"", "nan", "{}", "null", "[1"}) {
    std::vector<db::CellValueRow> values = made.cell_values;
    values[1].value = text;
    expect_damaged(values, made.cells);
  }
  std::vector<db::CellValueRow> values = made.cell_values;
  values[1].number = 2'000'000'000;
  expect_damaged(values, made.cells);
}

class StoredStudy : public ::testing::Test {
 protected:
  StoredStudy() {
    std::string pattern = "/tmp/scalelab-cells-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    store_ = *db::OpenSqliteStore({directory_ + "/test.db"});
  }
  ~StoredStudy() override { std::filesystem::remove_all(directory_); }

  void Submit(const v1::StudySpec& spec) {
    world_.Submit(spec);
    const absl::Status status = store_->Commit(world_.fx.batch);
    ASSERT_TRUE(status.ok()) << status;
    world_.fx.batch.Clear();
  }
  // Closes the store, so that the contents of the WAL are in the file.
  uintmax_t DatabaseBytes() {
    store_.reset();
    return std::filesystem::file_size(directory_ + "/test.db");
  }

  World world_;
  std::string directory_;
  std::unique_ptr<db::Store> store_;
};

TEST_F(StoredStudy, IsTheSameAfterARestart) {
  Submit(Various());
  Submit(World::Spec({1, 2}, 3));
  const auto state = LoadState(*store_, 1);
  ASSERT_TRUE(state.ok()) << state.status();
  for (const int64_t id : {1, 2}) {
    const LiveStudy &before = *world_.state.study(id), &after = *state->study(id);
    ASSERT_EQ(after.cells.size(), before.cells.size());
    for (size_t i = 0; i < before.cells.size(); ++i) ExpectEqual(after.cells[i], before.cells[i]);
    EXPECT_EQ(after.cell_of, before.cell_of);
    EXPECT_EQ(after.queued, before.queued);
    ASSERT_EQ(after.shapes.size(), before.shapes.size());
    EXPECT_EQ(after.shapes[0].ranks_per_node, before.shapes[0].ranks_per_node);
    EXPECT_EQ(after.longest.size(), before.cells.size());
  }
}

// Versions before schema 5 stored whole cells.
TEST_F(StoredStudy, OfAnOlderVersionIsTheSameAfterARestart) {
  world_.Submit(Various());
  const LiveStudy& before = *world_.state.study(1);
  db::WriteBatch& batch = world_.fx.batch;
  batch.cell_values.clear();
  for (size_t i = 0; i < before.cells.size(); ++i) {
    batch.cells[i].key = ToJson(before.cells[i].key);
    batch.cells[i].spec = ToFullJson(before.cells[i].spec);
  }
  std::erase_if(batch.cells, [](const db::CellRow& row) { return row.excluded; });
  ASSERT_TRUE(store_->Commit(batch).ok());
  const auto state = LoadState(*store_, 1);
  ASSERT_TRUE(state.ok()) << state.status();
  const LiveStudy& after = *state->study(1);
  ASSERT_EQ(after.cells.size(), before.cells.size());
  for (size_t i = 0; i < before.cells.size(); ++i) ExpectEqual(after.cells[i], before.cells[i]);
  EXPECT_EQ(after.cell_of, before.cell_of);
}

TEST_F(StoredStudy, ARunWithoutItsCellIsDataLoss) {
  Submit(World::Spec({1}));
  db::WriteBatch batch;
  batch.runs = {world_.state.study(1)->runs[0]};
  batch.runs[0].cell_id = 99;
  ASSERT_TRUE(store_->Commit(batch).ok());
  const absl::Status status = LoadState(*store_, 1).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lacks cell 99 of studies/1/runs/1"));
}

// 1,000 cells with one program of 1 MB, or with several programs of 0.5 MB in total.
v1::StudySpec WithPrograms(int programs) {
  v1::StudySpec spec = World::Spec({1, 2, 4, 8, 16});
  (*spec.mutable_fixed()->mutable_fields())["engine"].set_string_value("custom");
  AddAxis(spec, "momentum", {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1});
  std::vector<double> decays;
  for (int i = 0; i < 20 / programs; ++i) decays.push_back(0.001 * i);
  AddAxis(spec, "weight_decay", decays);
  google::protobuf::Value command;
  command.mutable_list_value()->add_values()->set_string_value("sh");
  auto* text = command.mutable_list_value()->add_values();
  auto* axis = programs == 1 ? nullptr : spec.add_matrix();
  if (axis != nullptr) axis->set_key("command");
  for (int i = 0; i < programs; ++i) {
    text->set_string_value(
        std::string((programs == 1 ? 1 << 20 : 1 << 19) / programs, static_cast<char>('a' + i)));
    if (axis != nullptr)
      *axis->add_values() = command;
    else
      (*spec.mutable_fixed()->mutable_fields())["command"] = command;
  }
  return spec;
}

TEST_F(StoredStudy, ALongProgramOfAllCellsIsStoredOnce) {
  Submit(WithPrograms(1));
  ASSERT_EQ(world_.state.study(1)->cells.size(), 1000u);
  EXPECT_LT(DatabaseBytes(), 8u << 20);
}

TEST_F(StoredStudy, LongProgramsThatAreAnAxisAreStoredOnceEach) {
  Submit(WithPrograms(10));
  ASSERT_EQ(world_.state.study(1)->cells.size(), 1000u);
  EXPECT_LT(DatabaseBytes(), 8u << 20);
}

}  // namespace
}  // namespace scalelab::server
