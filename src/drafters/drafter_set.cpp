#include "drafters/drafter_set.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/json_file.h"
#include "format/safetensors_store.h"

namespace tensorfold::drafters {
namespace {

constexpr uint64_t kMostConfigBytes = 1 << 20;

}  // namespace

std::vector<std::unique_ptr<Drafter>> make_drafters(backend::Backend& backend, families::Model& model,
                                                    const DrafterChoice& choice) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  if (choice.block_drafter) {
    format::ProblemList problems;
    const nlohmann::json config =
        format::read_json_object(*choice.block_drafter / "config.json", kMostConfigBytes, problems);
    problems.throw_if_any(ErrorKind::corrupt_file, "the drafter's config.json");
    const auto store = format::SafetensorsStore::open_directory(*choice.block_drafter);
    drafters.push_back(std::make_unique<DflashDrafter>(backend, model, config, *store, choice.block_options));
  } else if (choice.mtp && choice.mtp_options.most > 0 && model.draft_head() != nullptr) {
    drafters.push_back(std::make_unique<MtpDrafter>(backend, model, choice.mtp_options));
  }
  if (choice.copies) drafters.push_back(std::make_unique<CopyDrafter>());
  return drafters;
}

}  // namespace tensorfold::drafters
