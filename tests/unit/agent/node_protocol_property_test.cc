// Jobs on one node in which things happen in a random order: what must hold holds, and checkpoints never stop.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "protocol_node.h"

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

// A job whose trainers do their steps in a random order, die, and are started anew from the newest step that all have.
class RandomJob {
 public:
  RandomJob(std::uint32_t seed, std::size_t world_size) : random_(seed), world_size_(world_size), node_(world_size) {
    trainers_.resize(world_size);
    restart();
  }

  void step(bool with_failures) {
    const std::size_t rank = random_() % world_size_;
    Trainer& trainer = trainers_[rank];
    const std::string owner = ProtocolNode::owner(rank);
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        end_iteration(rank, with_failures);
        break;
      case 3:
        if (trainer.writing && node_->copied(owner, trainer.writing->label, trainer.writing->slot)) {
          trainer.unhashed.push_back(*trainer.writing);
        }
        trainer.writing.reset();
        break;
      case 4:
        for (const PromiseMade& copied : trainer.unhashed) {
          node_->hashed(owner, copied.label, copied.slot);
        }
        trainer.unhashed.clear();
        break;
      case 5:
        if (with_failures && random_() % 40 == 0) {
          fail(rank);
        }
        break;
      default:
        advance();
    }
    check();
  }

  std::optional<Label> agreed() { return node_->agreed(); }

 private:
  struct Trainer {
    std::uint64_t at = 0;
    std::optional<PromiseMade> writing;
    std::vector<PromiseMade> unhashed;
  };

  void end_iteration(std::size_t rank, bool with_failures) {
    Trainer& trainer = trainers_[rank];
    // Collectives keep ranks within a step of each other; the optimizer waits for the copy, or cancels it.
    const auto slowest = std::ranges::min_element(trainers_, {}, &Trainer::at);
    if (trainer.at > slowest->at) {
      return;
    }
    const std::string owner = ProtocolNode::owner(rank);
    if (trainer.writing) {
      if (!with_failures || random_() % 4 != 0) {
        return;
      }
      node_->skipped(owner, trainer.writing->label, SkipCause::kCancelled);
      trainer.writing.reset();
    }
    const Label label{incarnation_, ++trainer.at};
    const std::optional<PromiseMade> made = node_.promise(rank);
    if (made && made->label == label && node_->began(owner, label, made->slot)) {
      trainer.writing = made;
    } else {
      node_->skipped(owner, label, SkipCause::kNoPromise);
    }
  }

  void fail(std::size_t rank) {
    if (random_() % 2 == 0) {
      node_->trainer_gone(ProtocolNode::owner(rank));
    }
    restart();
  }

  // What trainers do: from what is listed, the newest that every rank has.
  void restart() {
    ++incarnation_;
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      node_.attach(rank);
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      ASSERT_TRUE(node_->fence(ProtocolNode::owner(rank), incarnation_));
    }
    const Holdings holdings = node_->holdings();
    std::vector<Label> complete;
    for (const auto& [owner, labels] : holdings.own) {
      std::vector<Label> both(labels.begin(), labels.end());
      if (owner != holdings.own.begin()->first) {
        both.clear();
        std::ranges::set_intersection(complete, labels, std::back_inserter(both));
      }
      complete = both;
    }
    const Label choice = complete.empty() ? kInitialState : complete.back();
    if (newest_) {
      ASSERT_GE(choice, *newest_) << "an agreed step is lost";
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      ASSERT_TRUE(node_->pin(ProtocolNode::owner(rank), choice, complete));
      trainers_[rank] = {choice.step, std::nullopt, {}};
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      ASSERT_EQ(node_->fetch(ProtocolNode::owner(rank), choice).value().has_value(), choice != kInitialState);
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      ASSERT_TRUE(node_->go_on(ProtocolNode::owner(rank), incarnation_, choice.step + 1));
    }
    advance();
  }

  void advance() {
    for (const Effect& effect : node_.advance()) {
      if (const auto* const agreed = std::get_if<StepAgreed>(&effect)) {
        ASSERT_TRUE(!newest_ || agreed->label > *newest_) << "agreement went back";
        newest_ = agreed->label;
      } else if (const auto* const ended = std::get_if<SlotEnded>(&effect)) {
        ASSERT_TRUE(ended_.emplace(ended->owner, ended->slot).second) << "ended twice";
      } else if (const auto* const made = std::get_if<PromiseMade>(&effect)) {
        ASSERT_FALSE(ended_.contains({made->owner, made->slot})) << "a slot that is gone";
      }
    }
  }

  void check() {
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      const std::vector<OwnCopy> copies = node_->own_copies(ProtocolNode::owner(rank));
      ASSERT_LE(copies.size(), 2U);
      std::set<std::uint32_t> slots;
      for (const OwnCopy& copy : copies) {
        ASSERT_TRUE(slots.insert(copy.slot).second) << "two copies in one slot";
      }
      if (newest_ && *newest_ != kInitialState) {
        const auto has = [&](const OwnCopy& copy) { return copy.label >= *newest_; };
        ASSERT_TRUE(std::ranges::any_of(copies, has)) << "a rank gave the agreed step away";
      }
    }
  }

  std::mt19937 random_;
  std::size_t world_size_;
  ProtocolNode node_;
  std::uint32_t incarnation_ = 0;
  std::vector<Trainer> trainers_;
  std::optional<Label> newest_;
  std::set<std::pair<std::string, std::uint32_t>> ended_;
};

class NodeProtocolProperty : public testing::TestWithParam<std::uint32_t> {};

TEST_P(NodeProtocolProperty, NothingAgreedIsLostAndCheckpointsGoOn) {
  for (const std::size_t world_size : {1U, 2U, 4U}) {
    RandomJob job(GetParam() * 10 + static_cast<std::uint32_t>(world_size), world_size);
    for (int count = 0; count < 3000 && !HasFatalFailure(); ++count) {
      job.step(true);
    }
    const std::optional<Label> before = job.agreed();
    for (int count = 0; count < 3000 && !HasFatalFailure(); ++count) {
      job.step(false);
    }
    ASSERT_TRUE(job.agreed().has_value());
    EXPECT_GT(*job.agreed(), before.value_or(kInitialState)) << "checkpoints have stopped";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, NodeProtocolProperty, testing::Range(0U, 30U));

TEST(NodeProtocolInput, OfAnyKindIsBorne) {
  std::mt19937 random(7);
  NodeProtocolOptions options;
  options.replica_slots = 2;
  NodeProtocol protocol(options);
  const auto number = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  std::size_t effects = 0;
  for (int count = 0; count < 200000; ++count) {
    const std::string owner(1, static_cast<char>('a' + number(4)));
    const Label label{number(4), number(12) == 0 ? ~std::uint64_t{number(2)} : number(6)};
    const std::uint32_t slot = number(6);
    const std::vector<Label> kept{{number(4), number(6)}};
    const std::vector<AdoptedSlot> adopted{{slot, label}, {number(6), std::nullopt}};
    switch (number(22)) {
      case 0:
        protocol.attach({owner, number(5), number(5), number(4), number(4)});
        break;
      case 1:
        protocol.trainer_gone(owner);
        break;
      case 2:
        static_cast<void>(protocol.reserve(owner, number(3), 4096 * number(3)));
        break;
      case 3:
        static_cast<void>(protocol.adopt(owner, number(3), 4096, adopted));
        break;
      case 4:
        protocol.began(owner, label, slot);
        break;
      case 5:
        protocol.copied(owner, label, slot);
        break;
      case 6:
        protocol.hashed(owner, label, slot);
        break;
      case 7:
        protocol.damaged(owner, label, slot, SkipCause::kFailed);
        break;
      case 8:
        protocol.skipped(owner, label, SkipCause::kCancelled);
        break;
      case 9:
        static_cast<void>(protocol.fence(owner, label.incarnation));
        break;
      case 10:
        static_cast<void>(protocol.pin(owner, label, kept));
        break;
      case 11:
        static_cast<void>(protocol.fetch(owner, label));
        break;
      case 12:
        static_cast<void>(protocol.go_on(owner, label.incarnation, label.step));
        break;
      case 13:
        protocol.reject(label, "bad");
        break;
      case 14:
        protocol.hear(owner, protocol.holdings());
        break;
      case 15:
        protocol.hear_dead({label, owner, SkipCause::kNoPromise});
        break;
      case 16:
        protocol.receive_replica(owner, label, number(4));
        break;
      case 17:
        protocol.add_fetched(owner, label);
        break;
      case 18:
        protocol.hear_interruption();
        break;
      case 19:
        protocol.bye(owner);
        break;
      case 20:
        if (number(500) == 0) {
          protocol = NodeProtocol(options);
        }
        break;
      default:
        effects += protocol.advance().size();
    }
    for (const std::string& known : protocol.owners()) {
      ASSERT_LE(protocol.replicas(known).size(), 2U);
    }
  }
  EXPECT_GT(effects, 1000U) << "most of it did nothing";
}

}  // namespace
}  // namespace smon_rt
