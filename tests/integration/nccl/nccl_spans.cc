// Ops of NCCL belong to the spans that the job's hooks have open.

#include <cstdint>

#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

template <typename Event>
class NcclSpans : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    begin_ = library_.find<decltype(smon_begin)>("smon_begin");
    end_ = library_.find<decltype(smon_end)>("smon_end");
    const std::int32_t members[] = {0, 1};
    comm_id_ =
        library_.find<decltype(smon_register_communicator)>("smon_register_communicator")("dp", "dp", members, 2);
    ASSERT_NE(comm_id_, 0);
  }
  smon_token begin() const {
    smon_span_ids ids = SMON_NO_IDS;
    ids.comm_id = comm_id_;
    return begin_(SMON_GRADS_ALL_REDUCE, &ids);
  }
  std::uint64_t joined() const { return grown(&smon_status::nccl_joined_ops); }
  void op(void* context, void* group) const {
    void* call = nccl_.call(context, group);
    void* op = nccl_.coll(context, call);
    nccl_.stop(op);
    nccl_.stop(call);
  }

  Nccl<Event> nccl_{library_};
  int mask_ = 0;
  decltype(smon_begin)* begin_ = nullptr;
  decltype(smon_end)* end_ = nullptr;
  std::uint16_t comm_id_ = 0;
};

using Versions = ::testing::Types<nccl::EventV4, nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclSpans, Versions);

TYPED_TEST(NcclSpans, AnOpBelongsToTheSpanThatIsOpenAroundIt) {
  void* context = this->nccl_.init(41, 2, &this->mask_);
  for (int i = 0; i < 3; ++i) {
    const smon_token span = this->begin();
    this->op(context, this->nccl_.call_group(context));
    this->end_(span);
  }
  EXPECT_EQ(this->joined(), 3u);
  this->op(context, this->nccl_.call_group(context));
  EXPECT_EQ(this->joined(), 3u) << "no span is open";
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclSpans, TheChannelKnowsTheCommunicatorOnceASpanOfItWasSeen) {
  void* context = this->nccl_.init(42, 2, &this->mask_);
  void* before = this->nccl_.coll(context, nullptr);
  this->nccl_.transfer(context, before, 0, true, 1, 1);
  EXPECT_EQ(this->channel(42, 0, true)->comm_id, 0u);
  const smon_token span = this->begin();
  void* op = this->nccl_.coll(context, nullptr);
  this->end_(span);
  this->nccl_.transfer(context, op, 0, true, 1, 1);
  EXPECT_EQ(this->channel(42, 0, true)->comm_id, this->comm_id_);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclSpans, ACallThatNoHookSawIsNotTakenForOneThatNobodyWaitedForYet) {
  void* context = this->nccl_.init(43, 2, &this->mask_);
  const smon_token waited_for_later = this->begin();
  this->op(context, this->nccl_.call_group(context));
  this->op(context, this->nccl_.call_group(context));
  EXPECT_EQ(this->joined(), 1u);
  const smon_token next = this->begin();
  this->op(context, this->nccl_.call_group(context));
  EXPECT_EQ(this->joined(), 2u);
  this->end_(next);
  this->end_(waited_for_later);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclSpans, AnotherCommunicatorsSpanIsNotJoined) {
  void* context = this->nccl_.init(44, 2, &this->mask_);
  const smon_token first = this->begin();
  this->op(context, this->nccl_.call_group(context));
  this->end_(first);
  const std::int32_t members[] = {0, 3};
  smon_span_ids ids = SMON_NO_IDS;
  ids.comm_id = this->library_.template find<decltype(smon_register_communicator)>("smon_register_communicator")(
      "tp", "tp", members, 2);
  const smon_token other = this->begin_(SMON_COLLECTIVE, &ids);
  this->op(context, this->nccl_.call_group(context));
  EXPECT_EQ(this->joined(), 1u);
  this->end_(other);
  this->nccl_.finalize(context);
}

TEST(NcclGroups, AllCallsOfOneGroupBelongToTheSpanAroundIt) {
  Library library;
  const std::string run_id = "nccl-group-" + std::to_string(::getpid());
  ASSERT_EQ(library.start(run_id), SMON_OK);
  const Nccl<nccl::EventV6> nccl(library);
  int mask = 0;
  void* context = nccl.init(45, 1, &mask);
  const std::int32_t members[] = {0, 1};
  smon_span_ids ids = SMON_NO_IDS;
  ids.comm_id =
      library.find<decltype(smon_register_communicator)>("smon_register_communicator")("pp", "pp", members, 2);
  const smon_token span = library.find<decltype(smon_begin)>("smon_begin")(SMON_COLLECTIVE, &ids);
  const std::uint64_t before = library.status().nccl_joined_ops;
  void* group = nccl.call_group(context);
  ASSERT_NE(group, nullptr);
  void* calls[3];
  for (void*& call : calls) call = nccl.call(context, group);
  // As NCCL does: the ops come when the outermost group ends, after the calls have returned.
  for (void* call : calls) nccl.stop(call);
  for (void* call : calls) nccl.stop(nccl.coll(context, call));
  nccl.stop(group);
  EXPECT_EQ(library.status().nccl_joined_ops - before, 3u);
  library.find<decltype(smon_end)>("smon_end")(span);
  nccl.finalize(context);
  library.stop();
}

}  // namespace
}  // namespace smon_rt::testing
