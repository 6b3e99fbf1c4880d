// The metadata with which the dashboard identifies the browsers for which it makes calls.
#pragma once

namespace scalelab::server {

// Metadata of calls that the dashboard makes inside this process: the address of the browser, a name of its
// login, and a secret that only this process has. Without the secret, the other entries are ignored.
inline constexpr char kWebAddress[] = "x-scalelab-web-address";
inline constexpr char kWebLogin[] = "x-scalelab-web-login";
inline constexpr char kWebSecret[] = "x-scalelab-web-secret";
// Auth::SecretFor this name is that secret.
inline constexpr char kWebSecretName[] = "web";

}  // namespace scalelab::server
