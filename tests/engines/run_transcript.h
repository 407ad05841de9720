// Transcripts of a run around its engine: messages and acts in, records and messages out.
//
// The text is that of tests/transcript/text.h. Each command is followed by what it led to, in this
// order: what a scripted engine heard, the records after the input itself, the messages, and what
// has become of workers. A field that is as it was by default is left out. The reason of a message
// is left out where a record of the same step has it. Groups are announced as they are recorded;
// what a message adds is shown.
//
//   run ENGINE [workers=N] [key=value]...  a real engine, with its options by their keys, and the
//                                          run's: goal_steps, on_divergence=repair, ...
//   run scripted plan=P [joining=J]        one that does as `next` says (scripted_engine.h)
//     [follows=1]                          it goes on where the run before has been switched
//   start [hosts=A,B] [accumulates=1]      `workers` ranks have the common start; shows nothing
//   next EFFECT [RANK]... [key=value]... [after=N]
//                                          what the engine decides on the next event, or on the one
//                                          N events later. An effect has its record's name; words
//                                          are members, of equal weights unless weights=1/3,0,0
//   with EFFECT ...                        on the same event
//
// What a worker says has its message's name and fields. Of several ranks, each says it:
//   hello RANK... [key=value]...           as a new incarnation, RANK * 100 + 1, 2, ...
//   finished RANK... [outcome=failed]      on the group that it is in; all with included=all give
//                                          what they owe
//   ready, adopted, finish, pause, resume, leave, probed, placed, give_numbers, ... RANK...
//     [incarnation=I] [seq=S] [run=R] [token=A/B]  as if somebody else said it
//
// Others act:
//   lease_expired, process_ended, history_lost RANK...
//   hello_refused [key=value]...
//   operator VERB [key=value]...           by identity alice
//   wait TIME
//   deadline                               goes to the run's deadline and says when that is
//
// And these show:
//   explain RANK... [in=TIME]              why it waits
//   waits_for [RANK]... [in=TIME]          what a worker is told, or the start waits for
//   worker RANK...
//   status                                 of the run
//
// At its end the history of each run is replayed, and its state is loaded from a snapshot: either
// must give the same state.
#ifndef PRD_TESTS_ENGINES_RUN_TRANSCRIPT_H_
#define PRD_TESTS_ENGINES_RUN_TRANSCRIPT_H_

#include <string>

namespace prd {

// As transcript::Replay. `reloads`: after every input the run goes on from a snapshot of itself.
std::string ReplayRun(const std::string& text, bool reloads = false);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_RUN_TRANSCRIPT_H_
