// Golden transcripts: events in, decisions out, as text that a reviewer can read.
//
// The text is that of tests/transcript/text.h; each command is followed by what the engine decided
// on it. The first command makes the engine:
//
//   engine NAME [key=value]...                  options by their keys; 1 and 0 for flags
//   join RANK... [host=H] [iteration=I]         in this order; host "h" unless told otherwise
//   ready RANK... [iteration=I] [samples=S]     the next iteration of each unless told otherwise
//   ready RANK... [gradients=0]                 of rounds: waits unless it has a result to apply
//   ready RANK... [k=K] [waiting=0] [rtt=TIME]  of local steps: one more unless told otherwise
//   finish GROUP [failed=RANK,...]              every member present reports; then the group ends;
//                                               of rounds: failed for all, or got from the others
//   copy RANK... [iteration=I]                  has a copy of the newest replica, or of that one
//   placed RANK...                              has its shards of the newest placement
//   leave RANK... [why=left|lost|finished]
//   at TIME                                     "3ms", "1.5s": since the beginning
//   deadline                                    goes to the engine's deadline and says so
//   explain RANK...                             why each of them waits
#ifndef PRD_TESTS_ENGINES_TRANSCRIPT_H_
#define PRD_TESTS_ENGINES_TRANSCRIPT_H_

#include <string>

#include "engines/any_engine.h"
#include "tests/transcript/text.h"

namespace prd {

// The options of the engine that the command's first word names, by their keys.
EngineOptions MakeOptions(transcript::Command* command);

// As transcript::Replay.
std::string RunTranscript(const std::string& text);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_TRANSCRIPT_H_
