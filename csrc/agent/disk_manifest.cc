#include "agent/disk_manifest.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstdio>
#include <exception>
#include <limits>
#include <set>
#include <stdexcept>

#include "agent/content_hash.h"

namespace smon_rt {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::uint64_t kMaxContentBytes = std::uint64_t{1} << 46;

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::uint64_t hash_of(const json& value) {
  const auto& text = value.get_ref<const std::string&>();
  std::uint64_t hash = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || failed != std::errc{} || end != text.data() + text.size()) {
    throw std::runtime_error("a hash is not 16 hexadecimal digits");
  }
  return hash;
}

/// from_json of a negative number, or of a fraction, would give another number.
template <typename T>
T number_of(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<T>::max()) {
    throw std::runtime_error("a number is out of range");
  }
  return value.get<T>();
}

DiskShard shard_of(const json& value) {
  DiskShard shard;
  shard.owner = value.at("owner").get<std::string>();
  shard.file = value.at("file").get<std::string>();
  shard.topology = value.at("topology").get<std::string>();
  shard.content_bytes = number_of<std::uint64_t>(value.at("content_bytes"));
  shard.content_hash = hash_of(value.at("content_hash"));
  for (const json& hash : value.at("chunk_hashes")) shard.chunk_hashes.push_back(hash_of(hash));
  if (shard.file.empty() || shard.file[0] == '.' ||
      shard.file.find_first_of(std::string_view("/\0", 2)) != shard.file.npos) {
    throw std::runtime_error("a file's name leads out of the folder");
  }
  if (shard.content_bytes == 0 || shard.content_bytes > kMaxContentBytes ||
      shard.chunk_hashes.size() != chunk_count(shard.content_bytes) ||
      hash_of_chunks(shard.chunk_hashes) != shard.content_hash) {
    throw std::runtime_error("sizes and hashes of " + shard.owner + " do not agree");
  }
  return shard;
}

}  // namespace

std::string encode_disk_manifest(const DiskManifest& manifest) {
  json shards = json::array();
  for (const DiskShard& shard : manifest.shards) {
    json hashes = json::array();
    for (const std::uint64_t hash : shard.chunk_hashes) hashes.push_back(hash_text(hash));
    shards.push_back({{"owner", shard.owner},
                      {"file", shard.file},
                      {"topology", shard.topology},
                      {"content_bytes", shard.content_bytes},
                      {"content_hash", hash_text(shard.content_hash)},
                      {"chunk_hashes", std::move(hashes)}});
  }
  const json document = {
      {"format", kFormat},           {"run_id", manifest.run_id},  {"incarnation", manifest.label.incarnation},
      {"step", manifest.label.step}, {"chunk_bytes", kChunkBytes}, {"hash", "xxh3-64"},
      {"shards", std::move(shards)}};
  // Names come from a job, and need not be UTF-8: dump() throws at what is not.
  return document.dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

Result<DiskManifest> decode_disk_manifest(std::string_view text) {
  try {
    const json document = json::parse(text);
    if (document.at("format") != kFormat) return Error{"of a newer version"};
    if (document.at("chunk_bytes") != kChunkBytes) return Error{"chunks of another size"};
    DiskManifest manifest;
    manifest.run_id = document.at("run_id").get<std::string>();
    manifest.label = {number_of<std::uint32_t>(document.at("incarnation")),
                      number_of<std::uint64_t>(document.at("step"))};
    std::set<std::string> owners;
    for (const json& value : document.at("shards")) {
      manifest.shards.push_back(shard_of(value));
      if (!owners.insert(manifest.shards.back().owner).second) return Error{"an owner is named twice"};
    }
    return manifest;
  } catch (const std::exception& exception) {
    return Error{std::string("damaged: ") + exception.what()};
  }
}

}  // namespace smon_rt
