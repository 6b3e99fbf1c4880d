// The subcommands. Each AddX function, defined in the file of its name, registers one subcommand below its
// parent; if the command line selects it, its action is stored in `chosen`.
#pragma once

#include "CLI/App.hpp"
#include "client/session/session.h"

namespace scalelab::client {

void AddStudyKeys(CLI::App& study, Action& chosen);
void AddStudyValidate(CLI::App& study, Action& chosen);
void AddStudyPlan(CLI::App& study, Action& chosen);
void AddStudySubmit(CLI::App& study, Action& chosen);
void AddStudyList(CLI::App& study, Action& chosen);
void AddStudyShow(CLI::App& study, Action& chosen);
void AddStudyExplain(CLI::App& study, Action& chosen);
void AddStudyWatch(CLI::App& study, Action& chosen);
void AddStudyWait(CLI::App& study, Action& chosen);
void AddStudyCancel(CLI::App& study, Action& chosen);
void AddStudyRetry(CLI::App& study, Action& chosen);
void AddStudyResume(CLI::App& study, Action& chosen);
void AddStudyHold(CLI::App& study, Action& chosen);
void AddStudyRelease(CLI::App& study, Action& chosen);
void AddStudyPriority(CLI::App& study, Action& chosen);
void AddStudyDelete(CLI::App& study, Action& chosen);
void AddRunList(CLI::App& run, Action& chosen);
void AddRunShow(CLI::App& run, Action& chosen);
void AddRunExplain(CLI::App& run, Action& chosen);
void AddRunLogs(CLI::App& run, Action& chosen);
void AddRunMetrics(CLI::App& run, Action& chosen);
void AddRunCancel(CLI::App& run, Action& chosen);
void AddRunRetry(CLI::App& run, Action& chosen);
void AddAdvise(CLI::App& app, Action& chosen);
void AddCluster(CLI::App& app, Action& chosen);
void AddClusterFrameworks(CLI::App& cluster, Action& chosen);
void AddDataVerify(CLI::App& data, Action& chosen);
void AddDataIndex(CLI::App& data, Action& chosen);
void AddWhoami(CLI::App& app, Action& chosen);
void AddTokenCreate(CLI::App& token, Action& chosen);
void AddTokenList(CLI::App& token, Action& chosen);
void AddTokenRevoke(CLI::App& token, Action& chosen);
void AddAdminAudit(CLI::App& admin, Action& chosen);
void AddAgent(CLI::App& app, Action& chosen);
void AddLogin(CLI::App& app, Action& chosen);
void AddWeb(CLI::App& app, Action& chosen);
void AddAdminPrune(CLI::App& admin, Action& chosen);
void AddVersion(CLI::App& app, Action& chosen);
// `app` must be complete: the completion script lists the subcommands and options registered in it.
void AddCompletion(CLI::App& app, Action& chosen);

}  // namespace scalelab::client
