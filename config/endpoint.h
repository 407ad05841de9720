// The syntax of endpoints, as texts: nothing is resolved or opened.
#ifndef PRD_CONFIG_ENDPOINT_H_
#define PRD_CONFIG_ENDPOINT_H_

#include <string>

namespace prd {

// Rules for Fields::Text: empty, or what is allowed.
std::string EndpointRule(const std::string& endpoint);
std::string ListenRule(const std::string& endpoint);  // the same, or nothing: an ipc socket

// Also of an empty text.
bool IsIpc(const std::string& endpoint);

// "127.0.0.1:9100", "[::1]:9100", "0.0.0.0:9100", "host:9100".
bool IsAddressAndPort(const std::string& text);

// True when no other host can reach it: ipc, 127.0.0.0/8, ::1 and localhost.
// REQUIRES: ListenRule allows it.
bool IsLoopback(const std::string& endpoint);

}  // namespace prd

#endif  // PRD_CONFIG_ENDPOINT_H_
