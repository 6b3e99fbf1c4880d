// `scalelab study compare A B`: shows the differences of studies, with intervals.
#include "client/commands/reports/comparison.h"
#include "client/commands/reports/figure_options.h"
#include "client/commands/reports/reports.h"

namespace scalelab::client {

void AddStudyCompare(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<ComparisonOptions>();
  auto panels = std::make_shared<std::vector<std::string>>();
  CLI::App* command = study.add_subcommand(
      "compare", "Show how much faster studies are than others at equal cells, with intervals");
  command->add_option("STUDIES", options->studies, "Two or more: numbers, names, or last")
      ->required()
      ->expected(2, -1);
  command->add_option("--equivalent", options->equivalent,
                      "Relative difference that does not matter, for example 2%");
  command
      ->add_option("--where", options->where,
                   "Only cells that fulfil conditions on axes, for example 'engine=native/* and ranks>=4'; "
                   "may be repeated")
      ->allow_extra_args(false);
  AddFigureOptions(*command, options->figure);
  AddPanels(*command, *panels, options->figure.style);
  auto* plot = command->add_flag("--plot", options->plot, "Plot even if standard output is not a terminal");
  command->add_flag("--no-plot", options->no_plot, "Do not plot on a terminal")->excludes(plot);
  command->callback([options, panels, &chosen] {
    chosen = [options, panels](Session& session) -> absl::StatusOr<ExitCode> {
      const auto quantities = QuantitiesOf(*panels);
      if (!quantities.ok()) return quantities.status();
      if (const absl::Status status =
              CheckPanels(*quantities, options->figure, options->svg, kTableOfComparison);
          !status.ok())
        return status;
      if (const absl::Status status = CheckStyle(options->figure, options->svg); !status.ok()) return status;
      options->panels = *quantities;
      return CompareWholeStudies(*options, session);
    };
  });
}

}  // namespace scalelab::client
