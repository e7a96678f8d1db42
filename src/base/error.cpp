#include "base/error.h"

namespace tensorfold {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_request:
      return "invalid_request";
    case ErrorKind::not_found:
      return "not_found";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::corrupt_file:
      return "corrupt_file";
    case ErrorKind::capacity:
      return "capacity";
    case ErrorKind::unauthorized:
      return "unauthorized";
    case ErrorKind::io:
      return "io";
    case ErrorKind::network:
      return "network";
    case ErrorKind::cancelled:
      return "cancelled";
    case ErrorKind::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace tensorfold
