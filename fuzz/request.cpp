// Request bodies of every dialect, through all checks up to the engine's door, with the demonstration model's template
// and tokenizer. The first byte picks the route.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/anthropic_request.h"
#include "server/responses_request.h"
#include "server/service.h"

namespace {

using namespace tensorfold;

class NoEngine final : public engine::Engine {
 public:
  std::shared_ptr<engine::Ticket> submit(engine::Request) override { return nullptr; }
  [[nodiscard]] engine::EngineStatus status() const override {
    engine::EngineStatus status;
    status.context = 4096;
    return status;
  }
  void stop() override {}
};

struct World {
  std::string directory = std::string(TENSORFOLD_SOURCE_DIR) + "/models/demo";
  text::Tokenizer tokenizer = text::Tokenizer::load(directory);
  server::PromptRenderer renderer{tokenizer, directory};
  NoEngine engine;
  std::unique_ptr<server::Service> service;
  World() {
    server::ServedModel model;
    model.engine = &engine;
    model.tokenizer = &tokenizer;
    model.renderer = &renderer;
    model.end_tokens = {0, 2};
    model.vocabulary = static_cast<int64_t>(tokenizer.vocabulary_size());
    server::ServiceOptions options;
    options.names = {"demo"};
    options.log_format = server::RequestLogFormat::off;
    service = std::make_unique<server::Service>(model, options);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const server::Json body = server::parse_body(text);
    switch (data[0] % 5) {
      case 0:
        (void)world.service->check_chat(body);
        break;
      case 1:
        (void)world.service->check_completion(body);
        break;
      case 2:
        (void)world.service->check_chat(server::chat_from_messages(body, false));
        break;
      case 3:
        (void)world.service->check_chat(server::chat_from_responses(body, server::input_items(body)));
        break;
      default:
        (void)world.service->render(body);
        break;
    }
  } catch (const Error& refused) {
    // A refusal is an answer; our own mistakes are not.
    if (refused.kind() == ErrorKind::internal) __builtin_trap();
  }
  return 0;
}
