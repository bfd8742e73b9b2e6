#include "record/request_file.h"

#include <charconv>
#include <optional>

namespace smon_rt {
namespace {

/// Just enough JSON for a flat object of numbers, texts and words. Nested values are refused.
class FlatJson {
 public:
  explicit FlatJson(std::string_view text) : rest_(text) {}

  /// Skips white space, then takes this character if it comes next.
  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool is_at_end() {
    skip_space();
    return rest_.empty();
  }
  bool is_at_text() {
    skip_space();
    return !rest_.empty() && rest_.front() == '"';
  }

  std::optional<std::string> text() {
    if (!take('"')) return std::nullopt;
    std::string text;
    while (!rest_.empty() && rest_.front() != '"') {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
      if (c == '\\') {
        if (rest_.empty() || std::string_view("\"\\/").find(rest_.front()) == std::string_view::npos) {
          return std::nullopt;  // escapes of letters do not occur in keys and run ids
        }
        c = rest_.front();
        rest_.remove_prefix(1);
      }
      text += c;
    }
    if (rest_.empty()) return std::nullopt;
    rest_.remove_prefix(1);
    return text;
  }

  /// The characters of a number, true, false or null.
  std::string_view word() {
    skip_space();
    std::size_t size = 0;
    while (size < rest_.size() && is_word(rest_[size])) ++size;
    const std::string_view word = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return word;
  }

 private:
  static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '-' || c == '+' || c == '.';
  }
  void skip_space() {
    const std::size_t begin = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  }

  std::string_view rest_;
};

template <typename Integer>
bool read_integer(std::string_view word, Integer* value) {
  const char* end = word.data() + word.size();
  const auto [read_to, error] = std::from_chars(word.data(), end, *value);
  return error == std::errc{} && read_to == end && !word.empty();
}

Error malformed(std::string_view what) {
  return Error{"request.json is ignored: " + std::string(what)};
}

/// Takes the value of one key. "": fine.
std::string_view read_value(FlatJson& json, std::string_view key, SamplingRequest& request, bool& has_first_step) {
  if (json.is_at_text()) {
    std::optional<std::string> text = json.text();
    if (!text) return "a text does not end";
    if (key == "first_step" || key == "step_count") return "first_step and step_count are whole numbers";
    if (key == "run_id") request.run_id = *std::move(text);
    return "";
  }
  const std::string_view word = json.word();
  if (word.empty()) return "a value is missing or nested";
  if (key == "first_step") {
    has_first_step = read_integer(word, &request.first_step);
    return has_first_step ? "" : "first_step is no whole number";
  }
  if (key == "step_count" && !read_integer(word, &request.step_count)) return "step_count is no whole number";
  return "";
}

}  // namespace

Result<SamplingRequest> parse_sampling_request(std::string_view text) {
  if (text.size() > kMaxRequestBytes) return malformed("it has more than 4096 bytes");
  FlatJson json(text);
  if (!json.take('{')) return malformed("it is no JSON object");
  SamplingRequest request;
  bool has_first_step = false;
  if (!json.take('}')) {
    do {
      const std::optional<std::string> key = json.text();
      if (!key || !json.take(':')) return malformed("a key is missing");
      const std::string_view problem = read_value(json, *key, request, has_first_step);
      if (!problem.empty()) return malformed(problem);
    } while (json.take(','));
    if (!json.take('}')) return malformed("it does not end");
  }
  if (!json.is_at_end()) return malformed("there is more after its end");
  if (!has_first_step || request.first_step < 0) return malformed("first_step must be a step, 0 or more");
  if (request.step_count < 1 || request.step_count > kMaxRequestedSteps) {
    return malformed("step_count must be 1 to 10000");
  }
  return request;
}

std::string encode_sampling_request(const SamplingRequest& request) {
  const std::string window = "{\"first_step\": " + std::to_string(request.first_step) +
                             ", \"step_count\": " + std::to_string(request.step_count);
  if (request.run_id.empty()) return window + "}\n";
  std::string text = window + ", \"run_id\": \"";
  bool is_plain = true;
  for (const char c : request.run_id) {
    is_plain = is_plain && static_cast<unsigned char>(c) >= 0x20;
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  text += "\"}\n";
  return is_plain && text.size() <= kMaxRequestBytes ? text : window + "}\n";
}

}  // namespace smon_rt
