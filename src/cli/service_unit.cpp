#include "cli/service_unit.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

// What both units may not do. No rule here stands in the way of a GPU's device files or of CUDA's executable memory.
constexpr std::string_view kHardening = R"(NoNewPrivileges=yes
UMask=0077
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
)";

// What takes a system manager to forbid.
constexpr std::string_view kSystemHardening = R"(ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
CapabilityBoundingSet=
)";

/// `text` as one word of ExecStart: in double quotes, with systemd's own signs doubled.
std::string word(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\')
      fail(ErrorKind::invalid_request, "a unit cannot hold '{}': it has a quote, a backslash or a control character",
           text);
    quoted += c;
    if (c == '%' || c == '$') quoted += c;
  }
  return quoted + '"';
}

std::string plain_line(const std::string& text) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
    fail(ErrorKind::invalid_request, "a unit's line cannot hold a control character");
  return text;
}

/// A setting's text in which systemd replaces nothing.
std::string literal_line(const std::string& text) {
  std::string doubled;
  for (const char c : plain_line(text)) doubled += c == '%' ? "%%" : std::string(1, c);
  return doubled;
}

}  // namespace

std::string unit_text(const ServiceUnit& unit) {
  std::string text = fmt::format("[Unit]\nDescription=TensorFold serving {}\n", literal_line(unit.model));
  text += "After=network-online.target\nWants=network-online.target\nStartLimitIntervalSec=600\nStartLimitBurst=5\n\n";
  text += fmt::format("[Service]\nType=simple\nExecStart={} serve {}", word(unit.program), word(unit.model));
  if (!unit.arguments.empty()) text += " " + plain_line(unit.arguments);
  // Loading a large model takes minutes; a stop waits for running replies and saved conversations.
  text += "\nRestart=on-failure\nRestartSec=10\nTimeoutStartSec=infinity\nTimeoutStopSec=150\nKillSignal=SIGTERM\n";
  text += "LimitNOFILE=65536\nLimitMEMLOCK=infinity\n";
  if (unit.system) {
    text += fmt::format("User={}\nStateDirectory=tensorfold\nCacheDirectory=tensorfold\n", plain_line(unit.account));
    text += "Environment=HOME=/var/lib/tensorfold HF_HOME=/var/cache/tensorfold/huggingface\n";
    text += "EnvironmentFile=-/etc/tensorfold/environment\n";
  } else {
    text += "EnvironmentFile=-%h/.config/tensorfold/environment\n";
  }
  text += kHardening;
  if (unit.system) text += kSystemHardening;
  text += fmt::format("\n[Install]\nWantedBy={}\n", unit.system ? "multi-user.target" : "default.target");
  return text;
}

bool is_hidden_from_services(const std::string& path) {
  constexpr std::array<std::string_view, 5> kHidden = {"/root/", "/home/", "/run/user/", "/tmp/", "/var/tmp/"};
  return std::any_of(kHidden.begin(), kHidden.end(),
                     [&](std::string_view folder) { return (path + "/").starts_with(folder); });
}

}  // namespace tensorfold::cli
