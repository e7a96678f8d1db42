#include "server/reply_parts.h"

#include <utility>

namespace tensorfold::server {

ReplyPart ReplyParts::step(int32_t token) {
  const bool opens_thinking = may_think() && token == placement_->think_open;
  const bool is_blank = may_be_blank() && token == placement_->blank_line;
  first_ = false;
  behind_thinking_ = false;
  if (now_ == ReplyPart::reasoning) {
    if (token != placement_->think_end) return now_;
    now_ = ReplyPart::answer;
    behind_thinking_ = true;
    return ReplyPart::marker;
  }
  if (now_ == ReplyPart::call) return now_;
  if (opens_thinking) {
    now_ = ReplyPart::reasoning;
    return ReplyPart::marker;
  }
  if (may_call() && token == placement_->call_opener) return now_ = ReplyPart::call;
  if (is_blank) return ReplyPart::marker;
  fresh_ = false;
  return now_;
}

}  // namespace tensorfold::server
