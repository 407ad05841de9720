// Transcripts of the controller without its surroundings (engines/controller.h), in virtual time.
//
// The text is that of tests/transcript/text.h; messages, records and words are those of
// run_transcript.h. Records of later runs begin with "run 2: ". Workers have acknowledged what they
// were sent, unless told otherwise by ack=A, oldest=S. Each command ends with a Flush.
//
//   controller [death_grace_ms=MS]         a new one, without a history. It knows the jobs toy and
//                                          another: p-reduce in groups of 2, 2 workers, leases of
//                                          1000 ms
//   start [returns_at_once=1]              ranks 0 and 1 have the common start of toy
//   MESSAGE RANK... [key=value]...         hello, heartbeat, ready, finished, ...
//   at TIME                                since the beginning
//   tick [TIME]                            at that time
//   alive [RANK]... until=TIME [every=100ms]
//                                          heartbeats of these, and a tick, again and again; shows
//                                          no HeartbeatAcks
//   connection RANK there=1|0 [incarnation=I]
//   operator VERB [job=J] [key=value]...   by identity alice; a switch to spec all-reduce
//   disk full=1|0
//   restart [lose=N] [torn=1] [snapshot=1] another controller restores all runs: without the last N
//                                          inputs, or the last one's decisions; from a snapshot
//     [only=RUN [drop=N]]                  with this run's records alone, without the last N
//   forget                                 another controller without a history
//   know_ended RUN [job=J] [identity=I] finished=1|0
//   status                                 runs, and what was counted
//   explain RANK... [run=R]
#ifndef PRD_TESTS_ENGINES_CONTROLLER_TRANSCRIPT_H_
#define PRD_TESTS_ENGINES_CONTROLLER_TRANSCRIPT_H_

#include <string>

namespace prd {

// As transcript::Replay.
std::string ReplayController(const std::string& text);

}  // namespace prd

#endif  // PRD_TESTS_ENGINES_CONTROLLER_TRANSCRIPT_H_
