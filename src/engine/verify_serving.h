// What both kinds of verification share: engines for a serving, and comparing what they replied.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/verify_exact.h"

namespace tensorfold::engine {

/// An engine for the circumstances of a serving.
std::unique_ptr<Engine> start_serving(FuzzSubject& subject, const std::vector<VerifyDrafter>& drafters,
                                      const VerifyOptions& options, const VerifyServing& serving);
/// An engine for references: serial, alone, nothing kept.
std::unique_ptr<Engine> start_reference(FuzzSubject& subject, const VerifyOptions& options);
/// Submits all questions at once and waits for the replies.
std::vector<VerifyAnswer> ask_all(Engine& engine, const VerifyOptions& options,
                                  std::span<const VerifyQuestion> questions, bool draft);
/// Counts a difference where an answer is not the expected one, and says what differs; `circumstances` goes into the
/// line.
void compare_answer(VerifyReport& report, const VerifyQuestion& question, const VerifyAnswer& answer,
                    const std::string& circumstances);

}  // namespace tensorfold::engine
