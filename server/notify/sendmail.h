// The default of notify: {sendmail: PROGRAM}. It has a header of its own, because server/doctor uses it
// without the messages of the API.
#pragma once

namespace scalelab::server {

inline constexpr char kDefaultSendmail[] = "/usr/sbin/sendmail";

}  // namespace scalelab::server
