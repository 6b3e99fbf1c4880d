#include "study/file/yaml_document.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "study/values.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace scalelab {
namespace {

Position At(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {mark.line + 1, mark.column + 1};
}

// Builds the tree from the parser's events. Reports errors by throwing the parser's own exception, because
// nothing else stops the parser.
class TreeBuilder : public YAML::EventHandler {
 public:
  YamlPtr Take() { return root_ != nullptr ? std::move(root_) : std::make_shared<YamlNode>(); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Finish(anchor, mark, Make(YamlNode::kNull, mark));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    auto node = Make(YamlNode::kScalar, mark);
    node->text = value;
    node->quoted = tag != "?" && tag != "";
    if (!node->quoted &&
        (value == "~" || value == "null" || value == "Null" || value == "NULL" || value.empty())) {
      node->kind = YamlNode::kNull;
      node->text.clear();  // an option of sbatch with a null value, as in `contiguous: ~`, is a flag
    }
    Finish(anchor, mark, std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      throw YAML::ParserException(mark, "an alias refers to a node that contains it");
    Finish(YAML::NullAnchor, mark, found->second);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_.push_back({Make(YamlNode::kList, mark), anchor, std::nullopt});
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_.push_back({Make(YamlNode::kMap, mark), anchor, std::nullopt});
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Open {
    std::shared_ptr<YamlNode> node;
    YAML::anchor_t anchor;
    std::optional<YamlEntry> entry;  // of a mapping: an entry that has a key and no value yet
  };

  static std::shared_ptr<YamlNode> Make(YamlNode::Kind kind, const YAML::Mark& mark) {
    auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->at = At(mark);
    return node;
  }

  void Close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    YAML::Mark mark;
    mark.line = done.node->at.line - 1;
    mark.column = done.node->at.column - 1;
    Finish(done.anchor, mark, std::move(done.node));
  }

  // Adds a complete node to its parent.
  void Finish(YAML::anchor_t anchor, const YAML::Mark& mark, YamlPtr node) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    parent.node->weight += node->weight;
    if (parent.node->weight > kMaxYamlNodes) {
      throw YAML::ParserException(mark, absl::StrCat("more than ", WithCommas(kMaxYamlNodes), " values"));
    }
    parent.node->depth = std::max(parent.node->depth, node->depth + 1);
    if (parent.node->depth > kMaxYamlDepth) throw YAML::ParserException(mark, "values are nested too deeply");
    if (parent.node->kind == YamlNode::kList) {
      parent.node->items.push_back(std::move(node));
    } else if (parent.entry.has_value()) {
      parent.entry->value = std::move(node);
      parent.node->entries.push_back(*std::exchange(parent.entry, std::nullopt));
    } else if (node->kind == YamlNode::kScalar) {
      parent.entry = YamlEntry{node->text, At(mark), nullptr};
    } else {
      throw YAML::ParserException(mark, absl::StrCat("a key must be text, not ", ShowNode(*node)));
    }
  }

  std::vector<Open> open_;
  std::unordered_map<YAML::anchor_t, YamlPtr> anchors_;
  YamlPtr root_;
};

}  // namespace

std::string ShowNode(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::kScalar:
      return Quote(node.text);
    case YamlNode::kList:
      return "a list";
    case YamlNode::kMap:
      return "a mapping";
    case YamlNode::kNull:
      break;
  }
  return "nothing";
}

YamlResult ParseYaml(const std::string& text) {
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    TreeBuilder builder;
    parser.HandleNextDocument(builder);
    YamlPtr root = builder.Take();
    TreeBuilder more;
    if (parser.HandleNextDocument(more)) {
      return {nullptr, "a second document starts here; a study file holds one", more.Take()->at};
    }
    return {std::move(root), "", {}};
  } catch (const YAML::Exception& e) {
    return {nullptr, absl::StrCat("this is not valid YAML: ", e.msg), At(e.mark)};
  }
}

}  // namespace scalelab
