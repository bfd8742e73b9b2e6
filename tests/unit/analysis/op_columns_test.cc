#include "analysis/op_columns.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "arrow_batch.h"
#include "job_builder.h"

namespace smon_rt::analysis {
namespace {

using testing::ArrowBatch;
using testing::ColumnStore;
using testing::Row;

constexpr const char* kColumnNames[] = {"dp_rank",     "stage",  "rank",  "step",         "kind",      "start_ns",
                                        "duration_ns", "seq_id", "chunk", "global_chunk", "microbatch"};

ColumnStore three_rows() {
  std::vector<Row> rows;
  for (int i = 0; i < 3; ++i) {
    rows.push_back({Kind::kForwardSend, i, 10 + i, 20 + i, 30 + i, 40 + i, 50 + i, 60 + i, 70 + i, 80 + i, 90 + i});
  }
  return ColumnStore(rows);
}

std::string view_error(const ArrowBatch& batch) {
  auto columns = view_arrow_columns(batch.schema, batch.array);
  return columns ? "no error" : columns.error().message;
}

TEST(OpColumns, EachColumnIsFoundByItsNameAndNotCopied) {
  const ColumnStore store = three_rows();
  const ArrowBatch batch(store);
  auto columns = view_arrow_columns(batch.schema, batch.array);
  ASSERT_TRUE(columns) << columns.error().message;
  EXPECT_EQ(columns->size(), 3u);
  EXPECT_EQ(columns->dp_rank.data(), store.dp_rank.data());
  EXPECT_EQ(columns->stage.data(), store.stage.data());
  EXPECT_EQ(columns->rank.data(), store.rank.data());
  EXPECT_EQ(columns->step.data(), store.step.data());
  EXPECT_EQ(columns->kind.data(), store.kind.data());
  EXPECT_EQ(columns->start_ns.data(), store.start_ns.data());
  EXPECT_EQ(columns->duration_ns.data(), store.duration_ns.data());
  EXPECT_EQ(columns->seq_id.data(), store.seq_id.data());
  EXPECT_EQ(columns->chunk.data(), store.chunk.data());
  EXPECT_EQ(columns->global_chunk.data(), store.global_chunk.data());
  EXPECT_EQ(columns->microbatch.data(), store.microbatch.data());
}

TEST(OpColumns, OtherColumnsDoNotMatter) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.add("note", "u", store.kind);
  batch.link();
  EXPECT_EQ(view_error(batch), "no error");
}

TEST(OpColumns, ColumnsOfOurOwnRulesMayBeThere) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  auto without = view_arrow_columns(batch.schema, batch.array);
  ASSERT_TRUE(without);
  EXPECT_TRUE(without->group_id.empty() && without->step_start_ns.empty() && without->is_waited.empty());
  const std::vector<std::int64_t> step_start_ns = {7, 8, 9};
  batch.add("group_id", "l", store.group_id);
  batch.add("step_start_ns", "l", step_start_ns);
  batch.add("is_waited", "C", store.kind);
  batch.link();
  auto columns = view_arrow_columns(batch.schema, batch.array);
  ASSERT_TRUE(columns) << columns.error().message;
  EXPECT_EQ(columns->group_id.data(), store.group_id.data());
  EXPECT_EQ(columns->step_start_ns.data(), step_start_ns.data());
  EXPECT_EQ(columns->is_waited.data(), store.kind.data());
}

TEST(OpColumns, AnOptionalColumnIsCheckedLikeAnyOther) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.add("group_id", "i", store.rank);
  batch.link();
  EXPECT_EQ(view_error(batch), "column group_id has the Arrow format 'i', expected 'l'");
  batch.column("group_id").format = "l";
  batch.column("group_id").array.null_count = 1;
  batch.link();
  EXPECT_EQ(view_error(batch), "column group_id has nulls");
}

TEST(OpColumns, OffsetsOfBatchAndColumnAddUp) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.array.offset = 1;
  batch.array.length = 1;
  batch.column("step").array.offset = 1;
  batch.column("step").array.length = 2;
  auto columns = view_arrow_columns(batch.schema, batch.array);
  ASSERT_TRUE(columns) << columns.error().message;
  EXPECT_EQ(columns->size(), 1u);
  EXPECT_EQ(columns->stage[0], 11);
  EXPECT_EQ(columns->step[0], 32);
}

TEST(OpColumns, ABatchWithoutRowsNeedsNoValues) {
  const ColumnStore store{{}};
  ArrowBatch batch(store);
  for (const char* name : kColumnNames) batch.column(name).buffers[1] = nullptr;
  auto columns = view_arrow_columns(batch.schema, batch.array);
  ASSERT_TRUE(columns) << columns.error().message;
  EXPECT_EQ(columns->size(), 0u);
}

TEST(OpColumns, AMissingColumnIsNamed) {
  const ColumnStore store = three_rows();
  for (const char* name : kColumnNames) {
    ArrowBatch batch(store);
    batch.remove(name);
    batch.link();
    EXPECT_EQ(view_error(batch), "column " + std::string(name) + " is missing");
  }
}

TEST(OpColumns, AColumnOfAnotherTypeIsNamedWithBothFormats) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.column("seq_id").format = "l";
  batch.link();
  EXPECT_EQ(view_error(batch), "column seq_id has the Arrow format 'l', expected 'i'");
  for (const char* name : kColumnNames) {
    ArrowBatch wrong(store);
    wrong.column(name).format = "g";
    wrong.link();
    EXPECT_EQ(view_error(wrong).substr(0, 40),
              ("column " + std::string(name) + " has the Arrow format 'g', expe").substr(0, 40));
  }
}

TEST(OpColumns, NullsAreRefusedWhetherCountedOrNot) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  const std::uint8_t bitmap = 0x5;
  batch.column("rank").buffers[0] = &bitmap;
  batch.column("rank").array.null_count = 1;
  EXPECT_EQ(view_error(batch), "column rank has nulls");
  batch.column("rank").array.null_count = -1;
  EXPECT_EQ(view_error(batch), "column rank has nulls");
  batch.column("rank").buffers[0] = nullptr;
  EXPECT_EQ(view_error(batch), "no error") << "without a bitmap there are no nulls, counted or not";
}

TEST(OpColumns, AColumnShorterThanTheBatchIsNamed) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.column("start_ns").array.length = 2;
  EXPECT_EQ(view_error(batch), "column start_ns is shorter than the batch");
  batch.array.length = 2;
  EXPECT_EQ(view_error(batch), "no error");
  batch.array.offset = 1;
  EXPECT_EQ(view_error(batch), "column start_ns is shorter than the batch");
}

TEST(OpColumns, LengthsAndOffsetsThatOverflowAreRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.array.offset = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(view_error(batch), "column dp_rank is shorter than the batch");
  batch.array.offset = 0;
  batch.array.length = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(view_error(batch), "column dp_rank is shorter than the batch");
  batch.array.length = 3;
  batch.column("kind").array.offset = -1;
  EXPECT_EQ(view_error(batch), "column kind has a negative offset");
  batch.column("step").array.length = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(view_error(batch), "column step is shorter than the batch");
}

TEST(OpColumns, NegativeBatchLengthsAndOffsetsAreRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.array.length = -1;
  EXPECT_EQ(view_error(batch), "the record batch has null rows or a negative length");
  batch.array.length = 2;
  batch.array.offset = -1;
  EXPECT_EQ(view_error(batch), "the record batch has null rows or a negative length");
  batch.array.offset = 0;
  batch.array.null_count = 1;
  EXPECT_EQ(view_error(batch), "the record batch has null rows or a negative length");
  const std::uint8_t bitmap = 0x5;
  const void* buffers[] = {&bitmap};
  batch.array.null_count = -1;
  batch.array.buffers = buffers;
  EXPECT_EQ(view_error(batch), "the record batch has null rows or a negative length");
}

TEST(OpColumns, AnArrayThatIsNoStructIsRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.schema.format = "i";
  EXPECT_EQ(view_error(batch), "ops must come as one Arrow record batch");
  batch.schema.format = nullptr;
  EXPECT_EQ(view_error(batch), "ops must come as one Arrow record batch");
  batch.schema.format = "+s";
  batch.array.n_children -= 1;
  EXPECT_EQ(view_error(batch), "ops must come as one Arrow record batch");
}

TEST(OpColumns, AColumnWithoutBuffersIsRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  ArrowArray& array = batch.column("chunk").array;
  array.n_buffers = 0;
  array.buffers = nullptr;
  array.null_count = -1;
  EXPECT_EQ(view_error(batch), "column chunk has no values");
  array.n_buffers = 2;
  EXPECT_EQ(view_error(batch), "column chunk has no values");
}

TEST(OpColumns, AColumnWithoutValuesIsRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.column("chunk").buffers[1] = nullptr;
  EXPECT_EQ(view_error(batch), "column chunk has no values");
}

TEST(OpColumns, AColumnWithoutNameOrFormatIsNoReasonToCrash) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.column("chunk").schema.format = nullptr;
  EXPECT_EQ(view_error(batch), "column chunk has the Arrow format '', expected 'i'");
  batch.link();
  batch.column("chunk").schema.name = nullptr;
  EXPECT_EQ(view_error(batch), "column chunk is missing");
}

TEST(OpColumns, AMissingChildIsNoReasonToCrash) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  batch.array.children[0] = nullptr;
  EXPECT_EQ(view_error(batch), "column dp_rank is missing");
  batch.link();
  batch.schema.children[0] = nullptr;
  EXPECT_EQ(view_error(batch), "column dp_rank is missing");
  batch.link();
  batch.array.children = nullptr;
  EXPECT_EQ(view_error(batch), "ops must come as one Arrow record batch");
}

TEST(OpColumns, IndicesIntoADictionaryAreNotTakenForValues) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  ArrowSchema dictionary{};
  dictionary.format = "i";
  batch.column("stage").schema.dictionary = &dictionary;
  EXPECT_EQ(view_error(batch), "column stage holds indices into a dictionary, expected plain values");
}

TEST(OpColumns, ValuesAtAnOddAddressAreRefused) {
  const ColumnStore store = three_rows();
  ArrowBatch batch(store);
  const std::vector<std::uint8_t> bytes(4 * sizeof(std::int64_t));
  batch.column("step").buffers[1] = bytes.data() + 1;
  EXPECT_EQ(view_error(batch), "column step lies at an address that is no multiple of its 8 bytes");
}

}  // namespace
}  // namespace smon_rt::analysis
