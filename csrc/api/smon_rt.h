/* smon_rt: records what a training process did, at a cost nobody notices.
 *
 * The C interface of libsmon_rt.so, and the only header it installs. Plain C99, no C++ types cross it.
 *
 * Rules that hold for every function:
 *   - Nothing here throws, aborts or blocks training. When in doubt a span is dropped and counted (smon_status_read).
 *   - Callable from any thread at any time; before smon_start, after smon_stop and in a forked child it does
 *     nothing.
 *   - smon_begin, smon_end, smon_step_begin and smon_step_end make no system call, take no lock and allocate nothing.
 *   - Structures begin with struct_size, set by the caller to sizeof the structure: fields are only ever added
 *     at the end.
 */
#ifndef SMON_RT_H_
#define SMON_RT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMON_API __attribute__((visibility("default")))

typedef enum smon_result {
  SMON_OK = 0,
  SMON_DISABLED = 1, /* SMON_RT_DISABLE is set: everything is inert */
  SMON_ALREADY_STARTED = 2,
  SMON_NOT_STARTED = 3,
  SMON_INVALID_ARGUMENT = 4,
  SMON_UNAVAILABLE = 5, /* directory, memory or another live process stand in the way, or smon_stop could not write
                           everything; smon_last_error says which */
  SMON_TIMED_OUT = 6    /* smon_stop: the drain did not finish in time; what was written is readable */
} smon_result;

/* Kinds of spans: the numbers of format/kind.h, never renumbered. */
typedef enum smon_kind {
  SMON_STEP = 0,
  SMON_FORWARD_COMPUTE = 1,
  SMON_BACKWARD_COMPUTE = 2,
  SMON_FORWARD_BACKWARD_COMBINED = 3,
  SMON_FORWARD_SEND = 4,
  SMON_FORWARD_RECV = 5,
  SMON_BACKWARD_SEND = 6,
  SMON_BACKWARD_RECV = 7,
  SMON_PARAMS_ALL_GATHER = 8,
  SMON_GRADS_REDUCE_SCATTER = 9,
  SMON_GRADS_ALL_REDUCE = 10,
  SMON_LAYERNORM_GRADS_ALL_REDUCE = 11,
  SMON_EMBEDDING_GRADS_ALL_REDUCE = 12,
  SMON_SEPARATE_GRADS_ALL_REDUCE = 13,
  SMON_COLLECTIVE = 14,
  SMON_OPTIMIZER_CLIP_MAIN_GRAD = 15,
  SMON_OPTIMIZER = 16,
  SMON_DATA_LOADING = 17,
  SMON_GC = 18,
  SMON_CHECKPOINT_SNAPSHOT = 19,
  SMON_CHECKPOINT_WAIT = 20,
  SMON_EVAL = 21,
  SMON_STARTUP = 22,
  SMON_METRIC = 23,
  SMON_USER = 24,
  SMON_KIND_COUNT = 25
} smon_kind;

/* What the end of a span was seen with: those of format/span.h that a caller can know. Times of the GPU are taken by
 * themselves in sampled steps, where the process has one and the thread a context: at both ends of forward_compute,
 * backward_compute, forward_backward_combined, eval, optimizer and optimizer_clip_main_grad. */
typedef enum smon_time_source {
  SMON_TIME_HOST = 0,
  SMON_TIME_WAIT_EVENT = 2, /* the stream that the thread launches into waits for it: the end is where the GPU has come
                               to this point of the stream, known once it has. Without a GPU: SMON_TIME_WAIT_RETURN */
  SMON_TIME_WAIT_RETURN = 4
} smon_time_source;

/* Which coordinates this process has; -1 or 0 where not known (coordinates, sizes). */
typedef struct smon_layout {
  size_t struct_size;
  int32_t dp_rank, stage, tp_rank, cp_rank, expert_dp_rank;
  int32_t dp_size, pp_size, tp_size, cp_size, vpp_size;
  int32_t microbatch_count;
  const char* schedule;
} smon_layout;

typedef struct smon_config {
  size_t struct_size;
  const char* trace_dir;   /* NULL: SMON_RT_TRACE_DIR, else no files, rings and table only */
  const char* run_id;      /* NULL: SMON_RT_RUN_ID, TORCHELASTIC_RUN_ID, else "run" */
  int32_t attempt;         /* -1: TORCHELASTIC_RESTART_COUNT, else the first free one */
  int32_t rank;            /* -1: RANK, else 0 */
  int32_t world_size;      /* -1: WORLD_SIZE, else 1 */
  int32_t local_rank;      /* -1: LOCAL_RANK, else 0 */
  double sample_ratio;     /* < 0: SMON_RT_SAMPLE_RATIO, else 0.10 */
  int32_t warmup_steps;    /* -1: SMON_RT_WARMUP_STEPS, else 3 */
  int32_t always_steps;    /* -1: 20; every step is sampled until this many are */
  uint64_t max_file_bytes; /* 0: 1 GiB; a file that grows beyond it is closed and the next one begun */
  int32_t nccl_detail;     /* 1: NCCL is asked when its kernels run, in sampled steps; -1: SMON_RT_NCCL_DETAIL, else 0.
                              Costs bandwidth. Of a process that captures streams into graphs see smon_capture_begin */
} smon_config;

/* Fills *config with the meanings of "not given" above. */
SMON_API void smon_config_init(smon_config* config);

/* Starts recording in this process. Spans begun before are lost; those begun after are recorded. */
SMON_API smon_result smon_start(const smon_config* config);

/* Writes what is left and closes the file, within about a second. Recording can be started again, whatever comes back:
 * SMON_OK if all that was recorded is written, or nothing should be (no directory was given); SMON_UNAVAILABLE if the
 * file failed at any time since smon_start or was removed (smon_last_error says why, smon_status_read how many spans
 * that cost); SMON_TIMED_OUT if the file system does not answer. Spans that were dropped on the way, because a ring was
 * full, change nothing about it: smon_status_read counts them. */
SMON_API smon_result smon_stop(void);

/* One line about the last failure in this process, "" if none. Valid until the next call that fails. */
SMON_API const char* smon_last_error(void);

/* Sets the coordinates of this process; also after smon_start, since jobs know them late. */
SMON_API smon_result smon_set_layout(const smon_layout* layout);

/* Adds to the header of the trace: versions and environment ("version.torch", "env.NCCL_ALGO"), hooks
 * ("hook.megatron.forward_step" with the value "" for installed, else the reason why not). */
SMON_API smon_result smon_set_fact(const char* key, const char* value);

/* A name, track or communicator becomes a small number. Slow (takes a lock): once, not per span. 0: table full or not
 * started. The same text gives the same id. Of names there are 65,535 at most, of 1 KiB each and 4 MiB in all. */
SMON_API uint16_t smon_intern_name(const char* text);
SMON_API uint16_t smon_register_track(int32_t device, uint64_t stream);
SMON_API uint16_t smon_register_communicator(const char* name, const char* dimension, const int32_t* member_ranks,
                                             size_t member_count);

/* A wait for operations of this communicator makes a stream of the GPU wait and returns at once, as NCCL's do: where
 * smon_end_at says SMON_TIME_WAIT_RETURN of its messages and data parallelism, SMON_TIME_WAIT_EVENT is meant. */
SMON_API void smon_set_stream_waits(uint16_t comm_id);

/* The step that spans belong to from here on. Steps may be numbered by the caller (step >= 0) or counted (step < 0). A
 * step begins where the one before ended, or here. Every step's wall time is recorded. */
SMON_API void smon_step_begin(int64_t step);
SMON_API void smon_step_end(void);
/* Non-zero while the current step's spans are recorded: what else is costly to find out can be left out otherwise. */
SMON_API int smon_is_sampled(void);

/* What a span is about; zero-initialise, then set what applies (microbatch, chunk and peer: -1 does not apply). */
typedef struct smon_span_ids {
  int16_t microbatch;
  int16_t chunk;
  uint16_t name_id;
  uint16_t comm_id;
  int32_t peer;
  uint32_t comm_seq; /* 0: counted by smon_begin per communicator and kind, or per communicator, peer and kind */
  uint64_t payload_bytes;
  uint16_t track_id;
  uint16_t flags;
  uint32_t reserved; /* 0 */
} smon_span_ids;

#define SMON_NO_IDS {-1, -1, 0, 0, -1, 0, 0, 0, 0, 0}

/* 0: nothing was begun (not sampled, full, not started); ending it is a no-op. */
typedef uint64_t smon_token;

/* Begins a span of this thread. ids may be NULL. */
SMON_API smon_token smon_begin(smon_kind kind, const smon_span_ids* ids);
/* Ends it, on any thread, once; a second or foreign end is counted and ignored. */
SMON_API void smon_end(smon_token token);
/* As smon_end, for a span that an exception left. */
SMON_API void smon_abort(smon_token token);
/* As smon_end, for a span whose end was noticed late or is known from a wait: it ended at `ticks` of smon_ticks (0, or
 * a time that is still to come: now), as smon_time_source says, with these further bits of span_flag. */
SMON_API void smon_end_at(smon_token token, int64_t ticks, smon_time_source source, uint16_t flags);
/* Where an open span may turn out to have ended: gives the ticks of now, which smon_end_at takes once that is sure. Of
 * a span with times of the GPU the place in its stream is kept with them. Not while another thread ends the span; of
 * any other token only the ticks. */
SMON_API int64_t smon_mark_end(smon_token token);
/* The clock of spans, now. */
SMON_API int64_t smon_ticks(void);
/* Adds what became known after the span began: communicator, peer, bytes. Only fields that are set. */
SMON_API void smon_annotate(smon_token token, const smon_span_ids* ids);
/* The innermost open span of this thread, 0 if none: for hooks that add to an outer integration's span. */
SMON_API smon_token smon_current(void);
/* The innermost open span of this thread that is of one of these kinds, 1 << SMON_OPTIMIZER and the like; 0 if none. */
SMON_API smon_token smon_find_open(uint32_t kinds);

/* A value at this point in time, under an interned name. */
SMON_API void smon_metric(uint16_t name_id, double value);

/* Samples every step of a window of coming steps on all ranks that hear of it in time. first_step < 0: soon. */
SMON_API smon_result smon_request_sampling(int64_t first_step, int32_t step_count);
/* Recording off and on again without stopping; while off everything is as cheap as before smon_start. */
SMON_API void smon_pause(void);
SMON_API void smon_resume(void);

/* Around each capture of a stream into a graph (cudaStreamBeginCapture), on any thread: NCCL must not be asked
 * meanwhile when its kernels run (nccl_detail), or each launch of the graph would tell. smon_rt's Python does it for
 * torch's. A capture that begins and never ends keeps it from being asked. */
SMON_API void smon_capture_begin(void);
SMON_API void smon_capture_end(void);

typedef struct smon_status {
  size_t struct_size;
  int32_t is_started, is_paused;
  int64_t step;            /* -1: none yet */
  uint64_t recorded_spans; /* written to rings since smon_start */
  uint64_t written_spans;  /* of these, in files; not counted are those in a file that is known to be gone */
  uint64_t dropped_spans;  /* of all kinds */
  uint64_t dropped_by_kind[SMON_KIND_COUNT];
  uint64_t foreign_tokens, stale_tokens, threads_without_ring;
  uint64_t sampled_steps, steps;
  uint64_t file_bytes;
  uint64_t drain_cpu_ns;
  char file_path[512];
  char file_error[256];         /* why nothing is written, "" if it is, or if no directory was given */
  uint64_t uncounted_sequences; /* operations without comm_seq: more communicators and peers than can be counted */
  uint64_t unwritten_spans;     /* recorded, and lost because the file failed or was removed: file_error says why */
  uint64_t reclaimed_spans;     /* open since an earlier step, and given up when their thread had no slot left */
  uint64_t saturated_steps;     /* steps numbered 2^32 - 1 or more: their spans are not recorded */
  uint64_t misused_calls;       /* calls whose arguments made no sense, in whole or in part; see smon_count_misuse */
  /* Since NCCL loaded this library as its profiler plug-in, over all starts; 0 where it did not. */
  uint64_t nccl_communicators;   /* that NCCL opened */
  uint64_t nccl_ops;             /* that it enqueued while something was recorded */
  uint64_t nccl_joined_ops;      /* of these, those that belong to a span */
  uint64_t nccl_foreign_handles; /* of another process, or none of ours */
  uint64_t nccl_stale_handles;   /* of what had ended already */
  uint64_t nccl_lost_ends;       /* of what never ended, and was given up when its room was needed */
  uint64_t nccl_rejected_times;  /* of kernels, that cannot be true */
  uint64_t nccl_untracked;       /* communicators and channels beyond those there is room for */
  uint64_t nccl_kernel_ops;      /* operations that were asked when their kernels run (nccl_detail) */
  char nccl_detail_refusal[256]; /* why NCCL was not asked for that, "" if it was */
} smon_status;

SMON_API void smon_status_read(smon_status* status);

/* Counts a misused call, for whoever wraps this interface and cannot pass on what it was given. Counted here are:
 * kinds that do not exist (such a span is dropped), communicators that were not registered, a name for a span of a
 * communicator or a communicator for any other span, names without room, a step that is begun while another thread
 * begins one, and an end that is still to come. Not looked at, since it would cost every span more than the mistake
 * does: ids that name nothing or are out of range. They go into the trace as they are, where they show. A time that
 * smon_end_at is given before the span's start is the start, one that is still to come is now; smon_step_end without a
 * step does nothing. */
SMON_API void smon_count_misuse(void);

/* ---- Checkpoints in memory (docs/checkpoint.md) ----
 *
 * A trainer copies its state, every so many steps, into memory that an agent of its node owns and that outlives it. One
 * checkpoint a process. smon_checkpoint_capture and smon_checkpoint_before_update belong to the training thread and
 * wait for nobody but the copy; the others are for set-up and restart, wait at most timeout_s, and name whom they
 * waited for. A label is (incarnation, step): each restart of the job is a new incarnation. */
typedef struct smon_checkpoint smon_checkpoint;

typedef struct smon_label {
  uint32_t incarnation;
  uint64_t step;
} smon_label;

typedef struct smon_checkpoint_config {
  size_t struct_size;
  const char* run_id; /* as of smon_config */
  int32_t rank, world_size;
  const char* owner;    /* logical coordinates, "dp=0,pp=1"; NULL: "rank=<rank>" */
  const char* topology; /* all else that the state depends on; another one's copies are refused */
  const char* attempt;  /* the same for all ranks of one start of the job, never used again */
  int32_t every;        /* steps between captures */
  int32_t own_slots;    /* 2 or 3 */
  const char* disk_dir; /* NULL: no disk tier */
  int32_t disk_every, disk_keep;
  int32_t agent_ttl_s;       /* how long an agent outlives its job; -1: 600 */
  const char* agent_program; /* NULL: smon-agent beside this library */
  const char* agent_dir;     /* NULL: SMON_RT_AGENT_DIR, else XDG_RUNTIME_DIR, else /tmp; of this node's */
  int32_t copy_threads;      /* of CPU tensors; 0: as many as pay */
  double timeout_s;          /* of each call that waits; <= 0: 30 */
} smon_checkpoint_config;

SMON_API void smon_checkpoint_config_init(smon_checkpoint_config* config);
/* Starts the agent where there is none, and says hello. *incarnation: the newest that the agent has heard of. */
SMON_API smon_result smon_checkpoint_open(const smon_checkpoint_config* config, smon_checkpoint** checkpoint,
                                          uint32_t* incarnation);
/* Lets go of everything here. The agent keeps what is captured, for agent_ttl_s; with job_is_over it forgets it. */
SMON_API void smon_checkpoint_close(smon_checkpoint* checkpoint, int32_t job_is_over);

/* A restart, in this order on all ranks: fence, then list once all are fenced, pin, fetch, go_on. */
SMON_API smon_result smon_checkpoint_fence(smon_checkpoint* checkpoint, uint32_t incarnation);

typedef struct smon_checkpoint_copy {
  smon_label label;
  int32_t tier; /* 1: the agent's memory, 2: disk */
  int32_t is_intact, is_tried;
  uint64_t content_bytes, content_hash;
  char owner[256];
  char topology[1024];
  char reason[256]; /* why it is not to be used, "" if it may be */
} smon_checkpoint_copy;

/* What exists of this rank's state: at most `capacity` of them are written, *count is how many there are. */
SMON_API smon_result smon_checkpoint_list(smon_checkpoint* checkpoint, smon_checkpoint_copy* copies, size_t capacity,
                                          size_t* count);
SMON_API smon_result smon_checkpoint_pin(smon_checkpoint* checkpoint, smon_label label, const smon_label* kept,
                                         size_t kept_count);
/* Maps a copy for reading: content is a safetensors file. Until smon_checkpoint_release. */
SMON_API smon_result smon_checkpoint_fetch(smon_checkpoint* checkpoint, smon_label label, int32_t tier,
                                           const void** content, size_t* content_bytes);
SMON_API void smon_checkpoint_release(smon_checkpoint* checkpoint);
/* next_step: the iteration that this rank ends next. From here on steps are promised. */
SMON_API smon_result smon_checkpoint_go_on(smon_checkpoint* checkpoint, uint32_t incarnation, uint64_t next_step);
/* This state proved bad after it was loaded: it is not offered again. */
SMON_API smon_result smon_checkpoint_reject(smon_checkpoint* checkpoint, smon_label label, const char* reason);

typedef struct smon_tensor_range {
  uint64_t offset;     /* in the content */
  uint64_t bytes;      /* at `address`; may be 0 */
  uint64_t address;    /* of the memory of `device` */
  int32_t device;      /* -1: the host's */
  int32_t is_volatile; /* others than the optimizer write it: copied before capture returns (host), or staged (GPU) */
} smon_tensor_range;

/* What is captured from here on: the content's first header_bytes (a safetensors header), and where the rest comes
 * from. A new layout gets new slots; captures are skipped until the agent has room for them. */
SMON_API smon_result smon_checkpoint_set_layout(smon_checkpoint* checkpoint, const void* header, size_t header_bytes,
                                                const smon_tensor_range* ranges, size_t range_count);

typedef enum smon_capture {
  SMON_CAPTURE_BEGUN = 0,
  SMON_CAPTURE_NOT_DUE = 1, /* not a step of `every` */
  SMON_CAPTURE_SKIPPED = 2  /* smon_checkpoint_status says why */
} smon_capture;

/* At the end of iteration `step`, once everything of it is updated. addresses: where the ranges lie now, range_count of
 * them, or NULL if nothing has moved. What is not volatile must stay as it is until smon_checkpoint_before_update. */
SMON_API smon_capture smon_checkpoint_capture(smon_checkpoint* checkpoint, uint64_t step, const uint64_t* addresses,
                                              uint64_t stream);
/* Before an optimizer changes what is being captured: waits for host tensors, makes `stream` wait for the GPU's, or
 * gives the capture up. Cheap where nothing is under way. */
SMON_API void smon_checkpoint_before_update(smon_checkpoint* checkpoint, uint64_t stream);

typedef struct smon_checkpoint_status {
  size_t struct_size;
  int32_t is_connected;
  smon_label promised, copied, agreed, durable; /* the newest of each; step 0 of incarnation 0: none */
  int32_t has_promised, has_copied, has_agreed, has_durable;
  uint64_t captures, skips;                      /* of this rank */
  uint64_t content_bytes, copied_bytes, copy_ns; /* of one state; of all captures, and the time these took */
  uint64_t blocked_ns, last_blocked_ns;          /* the training thread stood still */
  uint64_t gpu_wait_ns;                          /* streams stood still, as far as known */
  uint64_t job_skips;                            /* steps that any rank skipped */
  char last_skip[512];                           /* the last of them, by whom and why, "" if none */
  char error[512];                               /* why nothing is captured now, "" if it is */
  char agent[256];                               /* its pid and folder */
} smon_checkpoint_status;

/* Asks the agent too, where it answers in time; else what this process knows. */
SMON_API void smon_checkpoint_status_read(smon_checkpoint* checkpoint, smon_checkpoint_status* status);

SMON_API const char* smon_version(void);

#ifdef __cplusplus
}
#endif
#endif /* SMON_RT_H_ */
