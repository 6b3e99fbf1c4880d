// The methods of the API, as the .proto files declare them.
#pragma once

#include <google/protobuf/descriptor.h>

#include <filesystem>
#include <string>
#include <vector>

namespace scalelab::server {

// Returns the services of all files of proto/scalelab/v1. A file without generated code in this program adds a null pointer.
inline std::vector<const google::protobuf::ServiceDescriptor*> ServicesOfTheApi() {
  const std::string protos = SCALELAB_SOURCE_DIR "/proto/";
  std::vector<const google::protobuf::ServiceDescriptor*> services;
  for (const auto& entry : std::filesystem::directory_iterator(protos + "scalelab/v1")) {
    if (entry.path().extension() != ".proto") continue;
    const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
        entry.path().string().substr(protos.size()));
    if (file == nullptr) services.push_back(nullptr);
    for (int i = 0; file != nullptr && i < file->service_count(); ++i) services.push_back(file->service(i));
  }
  return services;
}

}  // namespace scalelab::server
