#!/usr/bin/env bash
# Check the models of this folder with spin: the rules as they are (no error may be found), then each
# rule taken out (its error must be found, and be the expected one). One line each, then the sums.
#
# Usage: run.sh [--full] [PATTERN]
#   --full    also the larger configurations (about half an hour, up to 8 GiB)
#   PATTERN   only the lines whose title matches this extended regular expression
# Needs spin and a C compiler. JOBS sets how many searches run side by side (default: the cores).
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
full=0
pattern=.
for argument in "$@"; do
    case $argument in
    --full) full=1 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "run.sh: unknown option $argument (see --help)" >&2; exit 2 ;;
    *) pattern=$argument ;;
    esac
done
cc=${CC:-cc}
for tool in spin "$cc"; do
    if ! command -v "$tool" >/dev/null; then
        echo "run.sh: $tool is missing; the models need it (Debian: apt-get install spin gcc)" >&2
        exit 1
    fi
done

work=$(mktemp -d) || exit 1
running=()
finish() {
    for pid in "${running[@]}"; do
        kill -- "-$pid" 2>/dev/null
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
# Each search is a process group of its own, so that it can be ended with its children.
set -m

# What the user of a broken protocol would meet, and the assertions that say so.
declare -A sign=(
    [torn]='true_lease\[|true_stream\[|true_frame\[s\]==|true_writer|first==|true_torn|true_sure|true_down_bad|true_data'
    [stale]='gen\[s\]!='
    [lost]='true_got|cursor\[r\]>=|cursor\[r\]!=after|g<=\(|true_start|taken\[|cursor==head'
    [newest]='true_frame\[s\]<head'
    [leaked]='entry\[i\]==0'
    [disturbed]='true_before'
    [unbounded]='waits<='
    [backwards]='taken\[r\]<=g'
    [unmapped]='true_mapped'
    [hidden]='head==\(2'
    [passed]='turn\['
    [stuck]='invalid end state'
)

# search DIR KIND TITLE WANTED FILE DEFINES...: one search; its line goes to DIR/line, and DIR/bad
# exists when it is a surprise.
search() {
    local dir=$1 kind=$2 title=$3 wanted=$4 file=$5
    shift 5
    # Compressed states take a third of the memory and a third more time.
    local options="-O2 -DMEMLIM=2048"
    [ "$full" = 1 ] && options="-O2 -DMEMLIM=8192 -DCOLLAPSE"
    [ "$kind" = caught ] && options="-O0 -DMEMLIM=2048" # found before a better program is compiled
    cd "$dir" || exit 1
    if ! { spin "$@" -a "$here/$file" &&
        "$cc" $options -w -DSAFETY -o pan pan.c; } >build 2>&1; then
        { echo "FAIL $title: does not build"; sed 's/^/     /' build; } >line
        touch bad
        return
    fi
    ./pan -m2000000 -w22 >out 2>&1
    local states cause
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' out)
    cause=$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/\1/p' out | head -n 1)
    if grep -q 'errors: 0' out; then
        if grep -qiE 'too small|out of memory|not completed|reached -DMEMLIM' out; then
            echo "FAIL $title: the search was cut short ($states states)" >line
            touch bad
        elif [ "$kind" = ok ]; then
            echo "ok   $title: $states states" >line
        else
            echo "FAIL $title: nothing found in $states states" >line
            touch bad
        fi
    elif [ -z "$cause" ]; then
        { echo "FAIL $title: the search broke"; sed 's/^/     /' out | head -n 5; } >line
        touch bad
    elif [ "$kind" = ok ]; then
        {
            echo "FAIL $title: $cause"
            spin "$@" -t -p -k ./*.trail "$here/$file" 2>/dev/null | tail -n 40 | sed 's/^/     /'
        } >line
        touch bad
    elif grep -qE "${sign[$wanted]}" <<<"$cause"; then
        echo "ok   caught: $title: $wanted" >line
    else
        echo "FAIL $title: expected \"$wanted\", found $cause" >line
        touch bad
    fi
}

passed=0
failed=0
# Print the searches that have ended, and forget them.
report() {
    local dir pid left=()
    for dir in "$work"/*/; do
        [ -e "$dir/done" ] || continue
        cat "$dir/line"
        if [ -e "$dir/bad" ]; then
            failed=$((failed + 1))
        else
            passed=$((passed + 1))
        fi
        rm -rf "$dir"
    done
    for pid in "${running[@]}"; do
        kill -0 "$pid" 2>/dev/null && left+=("$pid")
    done
    running=("${left[@]}")
}

jobs=${JOBS:-$(nproc 2>/dev/null || echo 1)}
number=0
start() {
    [[ $2 =~ $pattern ]] || return 0
    while [ "${#running[@]}" -ge "$jobs" ]; do
        wait -n "${running[@]}" 2>/dev/null
        report
    done
    number=$((number + 1))
    local dir
    dir=$work/$(printf '%03d' "$number")
    mkdir "$dir"
    { search "$dir" "$@"; touch "$dir/done"; } &
    running+=($!)
}
# ok TITLE FILE DEFINES...
ok() { start ok "$1" - "${@:2}"; }
# caught TITLE WANTED FILE DEFINES...
caught() { start caught "$@"; }
# more TITLE FILE DEFINES...: like ok, in the full run only
more() { [ "$full" = 0 ] || ok "$@"; }

one="-DHOLDS0=1"                       # two readers, one hold each
alone="-DHOLDS1=0"                     # one reader, two holds
threads="-DWRITERS=2 -DSLOTS=3 -DHOLDS0=1 -DHOLDS1=0"

ok "lease: latest, 2 slots, several holds" lease.pml
ok "lease: latest, 1 slot" lease.pml -DSLOTS=1 $one
ok "lease: latest, 3 slots" lease.pml -DSLOTS=3 $one
ok "lease: every, 2 slots, one reader wants all" lease.pml -DEVERY=1
ok "lease: every, 1 slot (turns)" lease.pml -DEVERY=1 -DSLOTS=1 -DWRITES=4
ok "lease: every, 2 slots, both readers want all" lease.pml -DEVERY=3 -DWRITES=4
ok "lease: every, two threads of one reader" lease.pml -DEVERY=1 -DTHREADS=2 $alone
ok "lease: leased slots are left alone" lease.pml -DDISTURB $one
ok "lease: by-handle reads wait once at most" lease.pml -DBOUNDED -DPROBE $one
ok "lease: first scan only where a lease was found" lease.pml -DREMEMBER -DBOUNDED -DPROBE $one
ok "lease: clearing the entry while waiting is safe" lease.pml -DCLEAR_WHILE_WAITING $one
ok "lease: one of two readers dies, 1 slot" lease.pml -DDEATHS=1 -DSLOTS=1 -DWRITES=2 $one
ok "lease: several holds, everyone may die" lease.pml -DDEATHS=3 $alone -DWRITES=4
ok "lease: every, everyone may die" lease.pml -DEVERY=1 -DDEATHS=3 $alone -DWRITES=4
ok "lease: release by a stream" lease.pml -DSTREAM=1 $alone -DWRITES=4
ok "lease: release by a stream, everyone may die" lease.pml -DSTREAM=1 $alone -DDEATHS=3
ok "lease: scanning only used entries" lease.pml -DFAR $alone -DWRITES=4
ok "lease: cancelled loans" lease.pml -DCANCEL $one
ok "lease: two writing threads, 3 slots" lease.pml $threads -DCANCEL
ok "lease: two writing threads, 3 slots, every" lease.pml $threads -DEVERY=1 -DCANCEL
ok "lease: two writing threads, the owner dies" lease.pml $threads -DSLOTS=2 -DDEATHS=2
ok "lease: two writing threads, waits are bounded" lease.pml $threads -DSLOTS=2 -DBOUNDED -DPROBE -DREMEMBER
more "lease: several holds, a reader dies" lease.pml -DDEATHS=1
more "lease: one of two readers dies" lease.pml -DDEATHS=1 $one
more "lease: the owner dies" lease.pml -DDEATHS=4 $one
more "lease: several holds, the owner dies" lease.pml -DDEATHS=4
more "lease: latest, 2 slots, 4 writes" lease.pml -DWRITES=4
more "lease: latest, 2 slots, release by a stream" lease.pml -DSTREAM=1
more "lease: latest, 2 slots, stream, a reader dies" lease.pml -DSTREAM=1 -DDEATHS=1
more "lease: latest, 3 slots, several holds" lease.pml -DSLOTS=3 -DWRITES=4
more "lease: latest, everyone may die" lease.pml $one -DDEATHS=7
more "lease: three readers, 1 slot" lease.pml $one -DHOLDS2=1 -DSLOTS=1 -DWRITES=2
more "lease: every, two readers, everyone may die" lease.pml $one -DEVERY=1 -DDEATHS=7
more "lease: two writing threads, 4 writes" lease.pml $threads -DWRITES=4
more "lease: two writing threads, every, 5 writes" lease.pml $threads -DEVERY=1 -DWRITES=5

single="-DREADERS=1"
joining="-DREADERS=1 -DEVERY=1 -DWRITERS=2 -DSLOTS=3 -DWRITES=4 -DSTARTED"
waited="-DREADERS=1 -DEVERY=1 -DWAIT_READERS=1"

ok "page: two readers join and leave, 1 slot" page.pml -DSLOTS=1 -DWRITES=2
ok "page: a reader joins, leaves, dies" page.pml $single -DDEATHS -DWRITES=4
ok "page: 1 slot" page.pml $single -DSLOTS=1 -DWRITES=4
ok "page: every, a reader joins, dies" page.pml $single -DEVERY=1 -DDEATHS -DWRITES=4
ok "page: every, 1 slot" page.pml $single -DEVERY=1 -DSLOTS=1 -DWRITES=4
ok "page: every, two writing threads" page.pml $joining
ok "page: every, the first loan waits for a reader" page.pml -DEVERY=1 -DWAIT_READERS=1
more "page: two readers join and leave" page.pml
more "page: two readers join and leave, one dies" page.pml -DDEATHS
more "page: every, one of two readers" page.pml -DEVERY=1
more "page: every, both readers" page.pml -DEVERY=3
more "page: every, two writing threads from the start" page.pml ${joining%-DSTARTED}

ok "order: lease" order.pml
ok "order: copy without a lease" order.pml -DRAW

ok "doorbell: the owner publishes" doorbell.pml
ok "doorbell: the owner publishes or dies" doorbell.pml -DDEATH
ok "doorbell: the owner rings before it publishes, too, or dies" doorbell.pml -DEARLY -DDEATH
ok "doorbell: two threads wait for a slot" doorbell.pml -DWAIT_SLOT
ok "doorbell: a thread waits for a slot, readers die" doorbell.pml -DWAIT_SLOT -DDEATH -DONE_THREAD
ok "doorbell: a thread waits, another gives up" doorbell.pml -DWAIT_SLOT -DTHIRD -DONE_THREAD
ok "doorbell: a thread waits, a stream releases" doorbell.pml -DWAIT_SLOT -DSTREAM -DONE_THREAD
more "doorbell: two threads wait, a third gives up" doorbell.pml -DWAIT_SLOT -DTHIRD
more "doorbell: two threads wait, readers die" doorbell.pml -DWAIT_SLOT -DDEATH

ok "promise: published" promise.pml
ok "promise: published or given up" promise.pml -DGIVE_UP
ok "promise: the owner dies" promise.pml -DGIVE_UP -DDEATH

started="-DSTARTED"
fails="-DFAIL -DSTARTED"
owner="-DOWNER_DIES -DSLOTS=1 -DWRITES=1" # one frame, two that complete it
owner_again="-DOWNER_DIES -DSLOTS=1 -DWRITES=2 -DALONE"
down="-DREADER_DIES -DDOWN -DSTARTED -DSLOTS=1"

ok "gate: one stream" gate.pml
ok "gate: two streams, frames out of order" gate.pml -DSTREAMS=2
ok "gate: a late joiner" gate.pml -DLATE=1
ok "gate: two readers, one late" gate.pml -DREADERS=2 -DLATE=2 $started -DALONE -DWRITES=2
ok "gate: and one that the CPU reads" gate.pml -DCPU $started
ok "gate: readers leave, gates are unmapped" gate.pml -DLEAVE -DSTREAMS=2 $started
ok "gate: a stream fails, a late joiner" gate.pml $fails -DLATE=1
ok "gate: one of two streams fails" gate.pml $fails -DSTREAMS=2
ok "gate: a stream fails, one that the CPU reads" gate.pml -DFAIL -DCPU -DSLOTS=1 -DWRITES=2 -DALONE
ok "gate: the owner dies" gate.pml $owner
ok "gate: the owner dies, the slot was used before" gate.pml $owner_again
ok "gate: the owner dies, 2 slots" gate.pml -DOWNER_DIES -DALONE $started
ok "gate: the owner dies, one that the CPU reads" gate.pml $owner -DCPU -DALONE
ok "gate: the owner dies, readers leave" gate.pml $owner -DLEAVE -DALONE
ok "gate: the owner dies or its stream fails, a late joiner" gate.pml $owner -DFAIL -DLATE=1 -DALONE
ok "gate: the owner dies unmarked" gate.pml $owner -DUNMARKED
ok "gate: the owner dies, a look after the wait is enough" gate.pml $owner -DNO_LOOK_UNTIL_HANGUP
ok "gate: the owner dies, looks until the hang-up are enough" gate.pml $owner -DNO_LOOK_AFTER_WAIT
ok "gate: a reader dies, gates are unmapped" gate.pml -DREADER_DIES -DLEAVE -DALONE $started
ok "gate: a reader dies, a frame was made of what it read" gate.pml $down
ok "gate: the owner is told by its streams" gate.pml -DTOLD -DSLOTS=1
ok "gate: the owner is told, a late joiner" gate.pml -DTOLD -DLATE=1 $started
ok "gate: the owner is told, a stream fails" gate.pml -DTOLD $fails -DWRITES=2
ok "gate: the owner is told, and dies" gate.pml -DTOLD $owner -DALONE
ok "gate: the reader's thread waits" gate.pml -DLOOKS
ok "gate: the reader's thread waits, a stream fails" gate.pml -DLOOKS $fails -DLATE=1
ok "gate: the reader's thread waits, the owner dies" gate.pml -DLOOKS $owner
ok "gate: both by their threads, the owner dies" gate.pml -DTOLD -DLOOKS $owner -DLATE=1 -DALONE
more "gate: the owner is told by its streams, 2 slots" gate.pml -DTOLD
more "gate: two readers, one late, 1 slot" gate.pml -DREADERS=2 -DLATE=2 -DSLOTS=1 -DWRITES=2
more "gate: the owner dies, a late joiner" gate.pml $owner -DLATE=1
more "gate: the owner dies, 2 slots, two complete" gate.pml -DOWNER_DIES $started -DWRITES=2
more "gate: a reader dies, gates are unmapped, two complete" gate.pml -DREADER_DIES -DLEAVE $started
more "gate: one of two streams fails, one that the CPU reads" gate.pml $fails -DSTREAMS=2 -DCPU -DALONE

caught "without the first scan" disturbed lease.pml -DNO_PRESCAN -DDISTURB $one
caught "without the claimed mark" torn lease.pml -DNO_CLAIM $one
caught "without the second scan" torn lease.pml -DNO_SECOND_SCAN $one
caught "without the reader's second read" torn lease.pml -DNO_SECOND_READ $one
caught "without waiting at the claimed mark" stale lease.pml -DNO_WAIT_CLAIMED $one
caught "without keeping the entry while waiting" unbounded lease.pml -DCLEAR_WHILE_WAITING -DBOUNDED -DPROBE $one
caught "without any first scan by an owner that probes" unbounded lease.pml -DNO_PRESCAN -DBOUNDED -DPROBE $one
caught "without putting the generation back" stuck lease.pml -DNO_PUT_BACK $one
caught "without clearing a failed entry" leaked lease.pml -DNO_CLEAR $one
caught "without release after the last read" torn lease.pml -DNO_RELEASE_LAST $one
caught "without the odd generation before the payload" torn lease.pml -DNO_ODD_FIRST -DDEATHS=4 $one
caught "without taking a dead owner's claimed frame" stuck lease.pml -DNO_DEAD_CLAIM -DDEATHS=4 $one
caught "without looking again after a death" torn lease.pml -DNO_LOOK_AFTER_DEATH -DDEATHS=4 $one
caught "without letting a dead owner's threads end" torn lease.pml -DNO_GRACE -DDEATHS=4 $one
caught "without letting a dead reader's threads end" torn lease.pml -DNO_GRACE -DDEATHS=1 $one
caught "without voiding the leases of the dead" stuck lease.pml -DNO_VOID -DDEATHS=1 $one
caught "without sparing the newest" newest lease.pml -DNO_NEWEST $one
caught "without looking at cursors" lost lease.pml -DNO_TAKEN -DEVERY=1 $one
caught "without leasing before the cursor" lost lease.pml -DNO_TAKE_AFTER_LEASE -DEVERY=1 $one
caught "without the head before the walk" lost lease.pml -DNO_HEAD_FIRST -DEVERY=1 -DWRITES=4 $one
caught "without raising the cursor only" backwards lease.pml -DNO_RAISE -DEVERY=1 -DTHREADS=2 $alone
caught "without one entry per hold" torn lease.pml -DNO_ENTRY_PER_HOLD
caught "without a read after holding again" torn lease.pml -DNO_HOLD_READ
caught "without noting an entry before its use" torn lease.pml -DNO_NOTE_ENTRY -DFAR
caught "without reusing entries only at 0" torn lease.pml -DNO_ENTRY_ZERO -DSTREAM=1
caught "without the stream clearing its entry" torn lease.pml -DNO_STREAM_CLEARS -DSTREAM=1
caught "without waiting for a dead reader's stream" torn lease.pml -DNO_STREAM_OUTLIVES -DSTREAM=1 -DDEATHS=1
caught "without compare-and-swap between writers" torn lease.pml -DNO_SWAP $threads
caught "without claiming just the frame that was judged" newest lease.pml -DNO_SAME_FRAME $threads
caught "without sparing what waits for its turn" newest lease.pml -DNO_BELOW_HEAD -DWRITES=4 $threads
caught "without turns at the head" lost lease.pml -DNO_TURNS -DEVERY=1 $threads
caught "without numbering at publish" hidden lease.pml -DNO_NUMBER_AT_PUBLISH -DEVERY=1 -DCANCEL $threads

caught "without linking before the answer" torn page.pml -DNO_LINK_FIRST $single
caught "without loading the list again for the second scan" torn page.pml -DNO_RELOAD_LIST $single
caught "without waiting for walkers before unmapping" unmapped page.pml -DNO_WAIT_FOR_WALKERS $single
caught "without counting walkers before the list is loaded" unmapped page.pml -DNO_WALK_COUNT_FIRST $single
caught "without looking at cursors again" lost page.pml -DNO_CURSOR_RESCAN $joining
caught "without counting claimed frames in a walk" lost page.pml -DNO_COUNT_CLAIMED $joining
caught "without waiting for the readers waited for" lost page.pml -DNO_WAIT_READERS $waited
caught "without a cursor before the link" lost page.pml -DNO_CURSOR_BEFORE_LINK $waited

caught "without a full fence after the mark" torn order.pml -DNO_MARK_FENCE
caught "without a full fence after the entry" torn order.pml -DNO_ENTRY_FENCE
caught "without a store fence before the generation" torn order.pml -DNO_STORE_FENCE
caught "without reading the generation before the payload" torn order.pml -DNO_READ_ORDER
caught "copy: without a full fence before the payload" torn order.pml -DRAW -DNO_MARK_FENCE
caught "copy: without a store fence before the generation" torn order.pml -DRAW -DNO_STORE_FENCE
caught "copy: without reading the generation before the payload" torn order.pml -DRAW -DNO_READ_ORDER
caught "copy: without reading the generation after the payload" torn order.pml -DRAW -DNO_READ_FENCE

slot="-DWAIT_SLOT -DONE_THREAD"
caught "publish: without a full fence before the flags" stuck doorbell.pml -DNO_PUBLISH_FENCE
caught "publish: without the fence before the list" stuck doorbell.pml -DNO_FENCE_BEFORE_LIST
caught "publish: without a full fence after arming" stuck doorbell.pml -DNO_ARM_FENCE
caught "publish: without a last look" stuck doorbell.pml -DNO_LOOK_AGAIN
caught "publish: without reading the bell before the look" stuck doorbell.pml -DNO_BELL_FIRST
caught "publish: without counting the bell up" stuck doorbell.pml -DNO_BELL_COUNT
caught "publish: without waking every thread" stuck doorbell.pml -DNO_WAKE_ALL
caught "publish: without leaving the flag to the ringer" stuck doorbell.pml -DNO_RINGER_CLEARS
caught "publish: without clearing before ringing" stuck doorbell.pml -DNO_CLEAR_BEFORE_RING
caught "publish: without a ring for deaths" stuck doorbell.pml -DNO_DEATH_RING -DDEATH
caught "publish: without the news before the bell" stuck doorbell.pml -DNO_NEWS_FIRST -DDEATH
caught "publish: without asking for the end before the look" lost doorbell.pml -DNO_CLOSED_FIRST -DDEATH
caught "publish: without a ring behind an early one" stuck doorbell.pml -DNO_SECOND_RING -DEARLY
caught "slot: without a full fence after release" stuck doorbell.pml -DNO_RELEASE_FENCE $slot
caught "slot: without a full fence after raising the cursor" stuck doorbell.pml -DNO_TAKE_FENCE $slot
caught "slot: without a full fence after the waiting flags" stuck doorbell.pml -DNO_WAIT_FENCE $slot
caught "slot: without reading the bell before the look" stuck doorbell.pml -DNO_BELL_FIRST $slot
caught "slot: without a ring when the cursor is raised" stuck doorbell.pml -DNO_RING_ON_TAKE $slot
caught "slot: without a ring after a failed lease" stuck doorbell.pml -DNO_RING_ON_CLEAR $slot
caught "slot: without a ring for a new reader" stuck doorbell.pml -DNO_JOIN_RING $slot
caught "slot: without the flag in a new reader's page" stuck doorbell.pml -DNO_JOIN_FLAG $slot
caught "slot: without a ring for deaths" stuck doorbell.pml -DNO_DEATH_RING -DDEATH $slot
caught "slot: without a ring when a slot is given up" stuck doorbell.pml -DNO_RING_ON_GIVE_UP -DTHIRD $slot
caught "slot: without telling whoever has the slot" stuck doorbell.pml -DNO_CONTENDED -DTHIRD $slot
caught "slot: without a full fence when a slot is given up" stuck doorbell.pml -DNO_GIVE_UP_FENCE -DTHIRD $slot
caught "slot: without slices when a stream releases" stuck doorbell.pml -DNO_SLICES -DSTREAM $slot
caught "slot: without waking every thread" stuck doorbell.pml -DNO_WAKE_ALL -DWAIT_SLOT
caught "slot: without raising flags again" stuck doorbell.pml -DNO_RAISE_AGAIN -DWAIT_SLOT
caught "slot: without a ring after raising flags again" stuck doorbell.pml -DNO_RING_AGAIN -DWAIT_SLOT

caught "promise: without the promise before the handle" lost promise.pml -DNO_PROMISED_FIRST
caught "promise: without the payload before the generation" torn promise.pml -DNO_PAYLOAD_FIRST -DDEATH
caught "promise: without the generation before the promise is taken back" lost promise.pml -DNO_GEN_FIRST
caught "promise: without a full fence before the armed flag" stuck promise.pml -DNO_FENCE
caught "promise: without a full fence after arming" stuck promise.pml -DNO_ARM_FENCE
caught "promise: without a last look" stuck promise.pml -DNO_LOOK_AGAIN
caught "promise: without taking the promise back when it is given up" stuck promise.pml -DNO_PROMISE_BROKEN -DGIVE_UP
caught "promise: without waking when it is given up" stuck promise.pml -DNO_WAKE_BROKEN -DGIVE_UP
caught "promise: without watching for deaths" stuck promise.pml -DNO_DEATH_WATCH -DDEATH
caught "promise: without looking at the generation when the owner has died" lost promise.pml -DNO_GEN_LOOK -DDEATH

caught "gate: without a look at what is pending" stale gate.pml -DNO_PENDING_LOOK
caught "gate: without pending before the generation in the second look" stale gate.pml -DNO_PENDING_LOOK_FIRST
caught "gate: without the generation before pending is taken back" stale gate.pml -DNO_GENERATION_FIRST
caught "gate: without pending taken back before the slot is" torn gate.pml -DNO_PENDING_FIRST
caught "gate: without pending said before others may complete" torn gate.pml -DNO_PENDING_BEFORE_WORK
caught "gate: without the slot on loan while pending" stale gate.pml -DNO_LOANED_WHILE_PENDING
caught "gate: without completing just once" stale gate.pml -DNO_SWAP
caught "gate: without raising gates at completion" stuck gate.pml -DNO_RAISE -DLATE=1
caught "gate: without the list loaded after the generation" stuck gate.pml -DNO_LIST_AFTER_GENERATION -DLATE=1
caught "gate: without the gates before done" stuck gate.pml -DNO_GATES_FIRST -DSTREAMS=2
caught "gate: without the gates before done, leaving" unmapped gate.pml -DNO_GATES_FIRST -DLEAVE
caught "gate: without waiting for streams before unmapping" unmapped gate.pml -DNO_LAST_GATED -DLEAVE
caught "gate: without waiting for walkers before unmapping" unmapped gate.pml -DNO_WAIT_FOR_WALKERS -DLEAVE
caught "gate: without reusing entries only at 0" torn gate.pml -DNO_ENTRY_ZERO
caught "gate: without the stream clearing its entry" torn gate.pml -DNO_STREAM_CLEARS
caught "gate: without the generation for the CPU" torn gate.pml -DNO_CPU_GENERATION -DCPU
caught "gate: without turns at the head" passed gate.pml -DNO_TURNS -DSTREAMS=2
caught "gate: without moving the head over failed frames" stuck gate.pml -DNO_HEAD_OVER_FAILED $fails
caught "gate: without raising gates of failed frames" stuck gate.pml -DNO_RAISE_FAILED $fails
caught "gate: without saying failed before the list is loaded" stuck gate.pml -DNO_FAILED_FIRST $fails -DLATE=1
caught "gate: without looking for failed frames" stuck gate.pml -DNO_LOOK_FAILED $fails -DLATE=1
caught "gate: without keeping failed frames that are held" torn gate.pml -DNO_FAILED_HELD $fails -DSTREAMS=2
caught "gate: without a poison below the next frame" torn gate.pml -DNO_ODD_POISON $fails -DSTREAMS=2
caught "gate: without any look after a death" stuck gate.pml -DNO_LOOK_UNTIL_HANGUP -DNO_LOOK_AFTER_WAIT $owner
caught "gate: without seeing the hang-up before the last look" stuck gate.pml -DNO_HANGUP_FIRST -DNO_LOOK_AFTER_WAIT $owner
caught "gate: without a look at the hang-up" stuck gate.pml -DNO_HANGUP_LOOK -DUNMARKED $owner
caught "gate: without watching for readers that leave" stuck gate.pml -DNO_WATCH_CLOSING -DLEAVE -DALONE $owner
caught "gate: without noting poison before the gate" torn gate.pml -DNO_POISONED_FIRST $owner
caught "gate: without looking at the note" torn gate.pml -DNO_LOOK_POISONED $owner
caught "gate: without looking at the note last" torn gate.pml -DNO_POISONED_LAST $owner
caught "gate: without raising the note only" torn gate.pml -DNO_RAISE_POISONED $owner_again
caught "gate: without counting a stream's calls" torn gate.pml -DNO_TICKET -DTOLD
caught "gate: without raising gates, told" stuck gate.pml -DNO_RAISE -DTOLD
caught "gate: without asking for the owner after the gate" torn gate.pml -DNO_LIFE_LOOK $down

while [ "${#running[@]}" -gt 0 ]; do
    wait -n "${running[@]}" 2>/dev/null
    report
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
