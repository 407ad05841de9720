// One SessionCore as a transcript (tests/transcript/text.h): what its user, the controller and the
// data plane do, each followed by the actions that the core answers with.
//
// A worker of rank 3 and incarnation 1001; its peers of other ranks R have incarnation 1998 + R,
// unless told otherwise.
//
//   worker                           another one; it has given incarnation 1001
//   join PLAN [key=value]...         another one, through the common start (of a store: placement 1
//   of
//                                    ranks 3 and 4, with a shard each); nothing is printed
//   incarnation N                    what the next Hello is said with
//
// The user:
//   attach [timeout=TIME] [start_timeout=TIME] [controller=TEXT] [own=STEPS/SAMPLES]
//          [job_trained=STEPS/SAMPLES] [gradients=later]
//   step ITERATION [discard=1] [taken=N] [samples=6]     of 5 ns
//   share [ahead=N]                  what to compute next
//   applied ITERATION [rounds=1] [digest=N]
//   finish; pause; resume; cancel; nonfinite; gradients
//   average [state=1]; mean NUMBER... [resumes=1]; losses COUNT mean=X
//   leave REASON; leave-soon REASON [grace=TIME]; stop REASON; fail CODE REASON
//
// The controller. Each message has the next number, unless seq=N says otherwise, acknowledges what
// the newest `ack` did (ack=N from then on) and is for the core's incarnation (to=N); identity=A/B
// is that of the run from then on; trained=STEPS/SAMPLES, workers=N and done=1 are its progress:
//   welcome PLAN [key=value]... [run=9] [rank=3] [engine=e] [own=STEPS/SAMPLES] [calls=1]
//   group ID [initial|final|round|average] [at=1] [members="3*0.5 4*0.5"] [gives=1] [passive=0]
//            [initial_weight=0] [last=0] [digest=0]
//   set-share SAMPLES [first=0] [from=0] [more=1]; a welcome takes batch=N, too, and attach and
//            join take accumulates=1 and max_share=N
//   abort GROUP [reason=TEXT] [undone=1]; adopt [from=4] [result=GROUP]; released [REASON]
//   refused CODE REASON [retry=TIME]; reply ITERATION [local_steps=K] [ready=1] [next=N]
//   [workers=N] schedule FIRST hosts=H,... [members=MEMBERS] neighbourhood [in=MEMBERS]
//   [from=N,...] [out=MEMBERS] [own=1] [slots=1] [at=0] placement EPOCH members=MEMBERS
//   shards="OWNER[<-SOURCE|<-none][+HOLDER,...] ..." [at=0] opened EPOCH; probe MEMBER...; members
//   MEMBER...; announce MEMBER... [copies=1]; gone N... resumed; end-run; numbers CALL NUMBER...
//   [wrong=TEXT] heartbeat [waits_for=TEXT]       a HeartbeatAck ack the same; all that was sent is
//   received
//
// The data plane. CODE is as in status.h with "-" for " "; "failed" is short for unavailable gone:
//   reduced GROUP [failed|CODE TEXT] [bytes=0] [unreachable=RANK,...] [digest=N]
//   fetched ITERATION [failed|CODE TEXT] [in_inbox=N]; copied [failed|CODE TEXT]
//   handed-over GROUP                what the step will have done
//   note offer|declined|stored ITEM from=PEER [version=N] [workers=N]
//   request N ITEM from=PEER; pulled TICKET [failed|CODE TEXT] [version=N]
//   probed RANK [INCARNATION]; out-of-reach RANK; connected; no-connection WHY
//
// Time, from 1 s on:
//   later TIME                       only the clock; the core hears of it with the next command
//   pass TIME                        and OnTime
//   busy TIME                        KeepLease at its end; what comes next came before that
//   alive TIME [every=1s] [waits_for=TEXT] [refused=TEXT]    and OnTime so often, each after a
//                                    HeartbeatAck, or a Refused that may pass
//   deadline                         when OnTime has something to do
//   trained                          own()
//
// A MEMBER is RANK[@INCARNATION][*WEIGHT], or with "+" for "*" of a passive one. PLAN, ITEM: see
// ParsePlan and ParseItem.
//
// A line of output is an action; fields that have their default are left out. Of an envelope, the
// header is shown where it is not as the controller expects it: its number follows "send"; "again"
// is one that was sent before. "x 3": three such lines. "now ..." lines are about the core's
// getters. Announced members are shown where they are not those that the message names.
//
// Errors, besides those of the text: a call that ends twice or that nobody made, and two reports of
// one group.
#ifndef PRD_TESTS_WORKER_CORE_TRANSCRIPT_H_
#define PRD_TESTS_WORKER_CORE_TRANSCRIPT_H_

#include <string>

namespace prd::testing {

// As transcript::Replay.
std::string RunCoreTranscript(const std::string& text);

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_CORE_TRANSCRIPT_H_
