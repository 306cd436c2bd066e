// Runs a .spec over a capture in DPDK's software switch (SWX, librte_pipeline 22.11), without NIC, huge pages or root.
//
//   swx check X.spec                    whether DPDK's own reader of .spec files takes it
//   swx run [-c COPIES] X.spec TABLES IN.pcap OUT
//                                       entries from TABLES/NAME.txt; packets to OUT/portN.pcap; counters to stdout
//
// The pipeline is built through the exported configuration API: the C code that DPDK would generate from a .spec needs
// a header that no package ships. The ports are ours too: DPDK's source copies frames without looking at the room, and
// its sink stamps the wall clock. There is a single buffer for packets, so they leave in order of arrival.
//
// SWX knows neither the length of a packet nor its time. So each frame gets a header of 16 bytes in front: bytes on
// the wire (32 bits), bytes present (32 bits), ns since 1970 (64 bits), all in network order. Frames shorter than an
// Ethernet header are dropped before, longer than ROOM are cut; both are counted.
//
// SWX has no packet replication engine as PSA has. With -c, each frame comes COPIES times, with a byte in front of the
// other header: the number of the copy, from 0. Programs drop the copies that they would not have asked for.
#define _GNU_SOURCE
#define ALLOW_EXPERIMENTAL_API // all of SWX is, in 22.11
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_swx_ctl.h>
#include <rte_swx_hash_func.h>
#include <rte_swx_pipeline.h>
#include <rte_swx_port.h>

enum {
  ARRIVAL = 16,      // bytes of the prepended header
  SHORTEST = 14,     // bytes of an Ethernet header
  ROOM = 16384,      // bytes of a frame
  HEADROOM = 256,    // bytes that emitted headers may add
  SNAP_MAX = 262144, // bytes of a record in a capture, as libpcap has it
  PORTS = 3,         // ports out
  COPIES_MAX = 16,   // copies of a frame
  WORDS_MAX = 64,
  LIST_MAX = 1024,
  LINE_MAX_BYTES = 4096,
};

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("swx: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static FILE *open_file(const char *path, const char *how) {
  FILE *file = fopen(path, how);
  if (!file) fail("%s: %s", path, strerror(errno));
  return file;
}

static char *copy(const char *text) {
  char *own = strdup(text);
  if (!own) fail("no memory");
  return own;
}

// ---- Captures: classic pcap, both byte orders, us and ns.

static uint32_t be32(const uint8_t *b) {
  return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void put32(uint8_t *b, uint32_t v) {
  for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> (24 - 8 * i));
}

struct reader {
  FILE *file;
  const char *path;
  int swapped; // little endian
  uint32_t ns_per_tick;
  uint64_t frames, dropped_short, cut;
};

static uint32_t word(const struct reader *r, const uint8_t *b) {
  uint32_t v = be32(b);
  return r->swapped ? __builtin_bswap32(v) : v;
}

static void open_capture(struct reader *r, const char *path) {
  uint8_t head[24];
  *r = (struct reader){.file = open_file(path, "rb"), .path = path};
  if (fread(head, 1, sizeof head, r->file) != sizeof head) fail("%s: too short for a capture", path);
  switch (be32(head)) {
  case 0xa1b2c3d4: r->ns_per_tick = 1000; break;
  case 0xa1b23c4d: r->ns_per_tick = 1; break;
  case 0xd4c3b2a1: r->ns_per_tick = 1000, r->swapped = 1; break;
  case 0x4d3cb2a1: r->ns_per_tick = 1, r->swapped = 1; break;
  default: fail("%s: not a classic pcap file: convert it with editcap -F pcap", path);
  }
  uint32_t link = word(r, head + 20) & 0x0fffffff;
  if (link != 1) fail("%s: link type %u, but the program starts with Ethernet (1)", path, link);
}

// The only buffer, taken while a packet is in the pipeline: `drop` gives it back itself, without a port.
static struct rte_mempool *buffers;
static uint64_t time_of_packet;
static uint32_t wire_len_of_packet;

// Puts the next frame that is long enough behind its arrival header. Returns bytes of both; 0 at the end.
static uint32_t next_frame(struct reader *r, uint8_t *to) {
  static uint8_t frame[SNAP_MAX];
  uint8_t head[16];
  for (;;) {
    size_t got = fread(head, 1, sizeof head, r->file);
    if (got == 0) return 0;
    if (got != sizeof head) fail("%s: ends within the header of frame %lu", r->path, r->frames + 1);
    uint32_t len = word(r, head + 8), wire_len = word(r, head + 12);
    if (len > SNAP_MAX) fail("%s: frame %lu of %u bytes, more than %d", r->path, r->frames + 1, len, SNAP_MAX);
    if (fread(frame, 1, len, r->file) != len) fail("%s: ends within frame %lu", r->path, r->frames + 1);
    r->frames++;
    if (len < SHORTEST) {
      r->dropped_short++;
      continue;
    }
    if (len > ROOM) {
      r->cut++;
      len = ROOM;
    }
    uint64_t ns = (uint64_t)word(r, head) * 1000000000 + (uint64_t)word(r, head + 4) * r->ns_per_tick;
    time_of_packet = ns;
    wire_len_of_packet = wire_len;
    put32(to, wire_len);
    put32(to + 4, len);
    put32(to + 8, (uint32_t)(ns >> 32));
    put32(to + 12, (uint32_t)ns);
    memcpy(to + ARRIVAL, frame, len);
    return ARRIVAL + len;
  }
}

// ---- Ports.

struct out {
  FILE *file;
  uint64_t packets, bytes;
};

static void *same(void *arguments) { return arguments; }
static void nothing(void *port) { (void)port; }

// Copies of each frame, with a number in front; 0 without -c. The number of the next one, and its frame.
static unsigned copies, copy_number;
static uint8_t copied[ARRIVAL + ROOM];
static uint32_t copied_len;

static int receive(void *port, struct rte_swx_pkt *packet) {
  struct rte_mbuf *buffer = rte_pktmbuf_alloc(buffers);
  if (!buffer) return 0;
  if (copy_number == 0) copied_len = next_frame(port, copied);
  if (!copied_len) {
    rte_pktmbuf_free(buffer);
    return 0;
  }
  uint8_t *to = (uint8_t *)buffer->buf_addr + HEADROOM;
  uint32_t len = copied_len;
  if (copies) {
    *to++ = (uint8_t)copy_number;
    copy_number = (copy_number + 1) % copies;
    len++;
  }
  memcpy(to, copied, copied_len);
  *packet = (struct rte_swx_pkt){.handle = buffer, .pkt = buffer->buf_addr, .offset = HEADROOM, .length = len};
  return 1;
}

static void transmit(void *port, struct rte_swx_pkt *packet) {
  struct out *out = port;
  struct rte_mbuf *buffer = packet->handle;
  if (packet->offset > buffer->buf_len || packet->length > buffer->buf_len - packet->offset)
    fail("a packet outside its buffer");
  uint32_t head[4] = {(uint32_t)(time_of_packet / 1000000000), (uint32_t)(time_of_packet % 1000000000), packet->length,
                      wire_len_of_packet};
  if (fwrite(head, sizeof head, 1, out->file) != 1 ||
      fwrite(packet->pkt + packet->offset, 1, packet->length, out->file) != packet->length)
    fail("cannot write a packet: %s", strerror(errno));
  out->packets++;
  out->bytes += packet->length;
  rte_pktmbuf_free(buffer);
}

static void clone_whole(void *port, struct rte_swx_pkt *packet) {
  (void)port, (void)packet;
  fail("the program mirrors packets, which this runner does not do");
}

static void clone_part(void *port, struct rte_swx_pkt *packet, uint32_t len) {
  (void)len;
  clone_whole(port, packet);
}

static void in_stats(void *port, struct rte_swx_port_in_stats *stats) {
  (void)port;
  memset(stats, 0, sizeof *stats);
}

static void out_stats(void *port, struct rte_swx_port_out_stats *stats) {
  (void)port;
  memset(stats, 0, sizeof *stats);
}

static struct rte_swx_port_in_ops in_ops = {.create = same, .free = nothing, .pkt_rx = receive, .stats_read = in_stats};
static struct rte_swx_port_out_ops out_ops = {.create = same,
                                              .free = nothing,
                                              .pkt_tx = transmit,
                                              .pkt_fast_clone_tx = clone_whole,
                                              .pkt_clone_tx = clone_part,
                                              .stats_read = out_stats};

// The CRC of RoCEv2, and PSA's CRC32: that of Ethernet. SWX's own crc32 is another one, Castagnoli's.
static uint32_t crc_of_ethernet(const void *bytes, uint32_t len, uint32_t seed) {
  uint32_t crc = ~seed;
  for (const uint8_t *at = bytes, *end = at + len; at < end; at++) {
    crc ^= *at;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

// ---- The .spec: the statements that our programs use; others are refused.

struct spec {
  FILE *file;
  const char *path;
  unsigned line;
  struct rte_swx_pipeline *pipeline;
  char *tables[LIST_MAX], *registers[LIST_MAX];
  uint32_t register_sizes[LIST_MAX];
  unsigned table_count, register_count;
};

#define bad(s, ...)                                                                                                    \
  (fprintf(stderr, "swx: %s:%u: ", (s)->path, (s)->line), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

// Returns of the API are negative error numbers.
static void took(struct spec *s, int result, const char *what) {
  if (result) bad(s, "%s: refused by DPDK: %s", what, strerror(-result));
}

// The words of the next line that has any, without comments; 0 at the end.
static unsigned next_line(struct spec *s, char line[LINE_MAX_BYTES], char *words[WORDS_MAX]) {
  while (fgets(line, LINE_MAX_BYTES, s->file)) {
    s->line++;
    if (!strchr(line, '\n') && !feof(s->file)) bad(s, "a line of more than %d bytes", LINE_MAX_BYTES - 2);
    unsigned count = 0;
    char *rest = line, *token;
    while ((token = strsep(&rest, " \t\r\n"))) {
      if (!*token) continue;
      if (*token == ';' || *token == '#' || !strncmp(token, "//", 2)) break;
      if (count == WORDS_MAX) bad(s, "more than %d words in a line", WORDS_MAX);
      words[count++] = token;
    }
    if (count) return count;
  }
  return 0;
}

static uint32_t number(struct spec *s, const char *text) {
  char *end;
  errno = 0;
  unsigned long v = strtoul(text, &end, 0);
  if (errno || *end || end == text || v > UINT32_MAX) bad(s, "'%s' is not a number of 32 bits", text);
  return (uint32_t)v;
}

// The lines of a block up to its '}'; each is joined with single spaces.
static unsigned block(struct spec *s, char **list) {
  char line[LINE_MAX_BYTES], *words[WORDS_MAX];
  unsigned count = 0, n;
  while ((n = next_line(s, line, words))) {
    if (n == 1 && !strcmp(words[0], "}")) return count;
    if (count == LIST_MAX) bad(s, "a block of more than %d lines", LIST_MAX);
    char joined[LINE_MAX_BYTES] = "";
    for (unsigned i = 0; i < n; i++) {
      if (i) strcat(joined, " ");
      strcat(joined, words[i]); // the line was not longer
    }
    list[count++] = copy(joined);
  }
  bad(s, "the file ends within a block");
}

static void free_list(char **list, unsigned count) {
  for (unsigned i = 0; i < count; i++) free(list[i]);
}

static void read_struct(struct spec *s, const char *name) {
  char *list[LIST_MAX];
  unsigned count = block(s, list);
  struct rte_swx_field_params fields[LIST_MAX];
  int last_varies = 0;
  for (unsigned i = 0; i < count; i++) {
    char *type = list[i], *field = strchr(list[i], ' '), *close;
    if (last_varies) bad(s, "struct %s: a varbit is its last field", name);
    if (!field) bad(s, "struct %s: 'bit<N> NAME' expected", name);
    *field++ = 0;
    last_varies = !strncmp(type, "varbit<", 7);
    if (!last_varies && strncmp(type, "bit<", 4)) bad(s, "struct %s: unknown type %s", name, type);
    char *digits = strchr(type, '<') + 1;
    if (!(close = strchr(digits, '>')) || close[1]) bad(s, "struct %s: 'bit<N> NAME' expected", name);
    *close = 0;
    fields[i] = (struct rte_swx_field_params){.name = field, .n_bits = number(s, digits)};
  }
  took(s, rte_swx_pipeline_struct_type_register(s->pipeline, name, fields, count, last_varies), name);
  free_list(list, count);
}

static void read_action(struct spec *s, const char *name, const char *arguments) {
  char *list[LIST_MAX];
  unsigned count = block(s, list);
  took(s, rte_swx_pipeline_action_config(s->pipeline, name, arguments, (const char **)list, count), name);
  free_list(list, count);
}

static void read_table(struct spec *s, const char *name) {
  char line[LINE_MAX_BYTES], *words[WORDS_MAX], *keys[LIST_MAX], *actions[LIST_MAX];
  char *default_action = NULL, default_arguments[LINE_MAX_BYTES] = "";
  unsigned n, key_count = 0, action_count = 0;
  uint32_t size = 0;
  for (;;) {
    if (!(n = next_line(s, line, words))) bad(s, "the file ends within table %s", name);
    if (!strcmp(words[0], "}")) break;
    if (!strcmp(words[0], "key") && n == 2) key_count = block(s, keys);
    else if (!strcmp(words[0], "actions") && n == 2) action_count = block(s, actions);
    else if (!strcmp(words[0], "size") && n == 2) size = number(s, words[1]);
    else if (!strcmp(words[0], "default_action") && n >= 4 && !strcmp(words[2], "args")) {
      default_action = copy(words[1]);
      for (unsigned i = 3; i < n && strcmp(words[3], "none"); i++) {
        if (i > 3) strcat(default_arguments, " ");
        strcat(default_arguments, words[i]);
      }
    } else bad(s, "table %s: unknown statement %s", name, words[0]);
  }
  if (!default_action) bad(s, "table %s has no default action", name);
  struct rte_swx_match_field_params fields[LIST_MAX];
  for (unsigned i = 0; i < key_count; i++) {
    char *kind = strchr(keys[i], ' ');
    if (!kind) bad(s, "table %s: 'FIELD KIND' expected", name);
    *kind++ = 0;
    if (strcmp(kind, "exact") && strcmp(kind, "wildcard")) bad(s, "table %s: unknown match %s", name, kind);
    fields[i] = (struct rte_swx_match_field_params){
        .name = keys[i], .match_type = *kind == 'e' ? RTE_SWX_TABLE_MATCH_EXACT : RTE_SWX_TABLE_MATCH_WILDCARD};
  }
  struct rte_swx_pipeline_table_params parameters = {
      .fields = fields,
      .n_fields = key_count,
      .action_names = (const char **)actions,
      .n_actions = action_count,
      .default_action_name = default_action,
      .default_action_args = *default_arguments ? default_arguments : NULL,
  };
  took(s, rte_swx_pipeline_table_config(s->pipeline, name, &parameters, NULL, NULL, size), name);
  if (s->table_count == LIST_MAX) bad(s, "more than %d tables", LIST_MAX);
  s->tables[s->table_count++] = copy(name);
  free_list(keys, key_count);
  free_list(actions, action_count);
  free(default_action);
}

static void read_spec(struct spec *s) {
  char line[LINE_MAX_BYTES], *w[WORDS_MAX], name[LINE_MAX_BYTES];
  for (unsigned n; (n = next_line(s, line, w));) {
    strcpy(name, n > 1 ? w[1] : "");
    if (!strcmp(w[0], "struct") && n == 3) read_struct(s, name);
    else if (!strcmp(w[0], "header") && n == 4)
      took(s, rte_swx_pipeline_packet_header_register(s->pipeline, name, w[3]), name);
    else if (!strcmp(w[0], "metadata") && n == 3)
      took(s, rte_swx_pipeline_packet_metadata_register(s->pipeline, w[2]), w[2]);
    else if (!strcmp(w[0], "action") && n == 5 && !strcmp(w[3], "none")) read_action(s, name, NULL);
    else if (!strcmp(w[0], "action") && n == 6) {
      char arguments[LINE_MAX_BYTES];
      strcpy(arguments, w[4]);
      read_action(s, name, arguments);
    } else if (!strcmp(w[0], "table") && n == 3) read_table(s, name);
    else if (!strcmp(w[0], "regarray") && n == 6) {
      if (s->register_count == LIST_MAX) bad(s, "more than %d register arrays", LIST_MAX);
      uint32_t size = number(s, w[3]);
      took(s, rte_swx_pipeline_regarray_config(s->pipeline, name, size, number(s, w[5])), name);
      s->register_sizes[s->register_count] = size;
      s->registers[s->register_count++] = copy(name);
    } else if (!strcmp(w[0], "apply") && n == 2) {
      char *list[LIST_MAX];
      unsigned count = block(s, list);
      took(s, rte_swx_pipeline_instructions_config(s->pipeline, (const char **)list, count), "apply");
      free_list(list, count);
    } else bad(s, "unknown statement %s", w[0]);
  }
}

// ---- Running.

static void start_eal(void) {
  cpu_set_t allowed;
  char first[16];
  if (sched_getaffinity(0, sizeof allowed, &allowed)) fail("no CPU: %s", strerror(errno));
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &allowed)) cpu++;
  snprintf(first, sizeof first, "%d", cpu);
  char *arguments[] = {"swx", "--no-shconf", "--no-huge", "--no-pci", "--no-telemetry", "-m", "512",
                       "--iova-mode=va", "--log-level=lib.eal:3", "-l", first};
  if (rte_eal_init(sizeof arguments / sizeof *arguments, arguments) < 0) fail("DPDK's environment does not start");
  // EAL pins the thread to that CPU; others may be free.
  if (sched_setaffinity(0, sizeof allowed, &allowed)) fail("no CPU: %s", strerror(errno));
}

static void load_tables(struct spec *s, struct rte_swx_ctl_pipeline *control, const char *folder) {
  char path[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
  for (unsigned i = 0; i < s->table_count; i++) {
    snprintf(path, sizeof path, "%s/%s.txt", folder, s->tables[i]);
    FILE *file = fopen(path, "r");
    if (!file && errno == ENOENT) continue; // a table without entries
    if (!file) fail("%s: %s", path, strerror(errno));
    for (unsigned number = 1; fgets(line, sizeof line, file); number++) {
      int is_blank = 0;
      struct rte_swx_table_entry *entry = rte_swx_ctl_pipeline_table_entry_read(control, s->tables[i], line, &is_blank);
      if (!entry && is_blank) continue;
      if (!entry || rte_swx_ctl_pipeline_table_entry_add(control, s->tables[i], entry))
        fail("%s:%u: not an entry of table %s", path, number, s->tables[i]);
    }
    fclose(file);
  }
  int result = rte_swx_ctl_pipeline_commit(control, 1);
  if (result) fail("the entries do not fit: %s", strerror(-result));
}

static void run(const char *spec_path, const char *tables, const char *in, const char *out_folder) {
  static struct reader reader;
  static struct out outs[PORTS];
  // ns; link type Ethernet.
  uint32_t head[6] = {0xa1b23c4d, 2 | 4 << 16, 0, 0, SNAP_MAX, 1};
  struct spec s = {.file = open_file(spec_path, "r"), .path = spec_path};
  open_capture(&reader, in);
  start_eal();
  buffers = rte_pktmbuf_pool_create("buffers", 1, 0, 0, HEADROOM + 1 + ARRIVAL + ROOM, SOCKET_ID_ANY);
  if (!buffers) fail("no memory for packets");
  took(&s, rte_swx_pipeline_config(&s.pipeline, "P", 0), "the pipeline");
  took(&s, rte_swx_pipeline_port_in_type_register(s.pipeline, "capture", &in_ops), "port in");
  took(&s, rte_swx_pipeline_port_out_type_register(s.pipeline, "capture", &out_ops), "port out");
  took(&s, rte_swx_pipeline_hash_func_register(s.pipeline, "crc32_ethernet", crc_of_ethernet), "the CRC");
  took(&s, rte_swx_pipeline_port_in_config(s.pipeline, 0, "capture", &reader), "port in");
  for (int i = 0; i < PORTS; i++) {
    char path[LINE_MAX_BYTES];
    snprintf(path, sizeof path, "%s/port%d.pcap", out_folder, i);
    outs[i].file = open_file(path, "wb");
    if (fwrite(head, sizeof head, 1, outs[i].file) != 1) fail("%s: %s", path, strerror(errno));
    took(&s, rte_swx_pipeline_port_out_config(s.pipeline, i, "capture", &outs[i]), "port out");
  }
  read_spec(&s);
  took(&s, rte_swx_pipeline_build(s.pipeline), "the pipeline");
  struct rte_swx_ctl_pipeline *control = rte_swx_ctl_pipeline_create(s.pipeline);
  if (!control) fail("no control of the pipeline");
  load_tables(&s, control, tables);

  // Until a round reads no frame; then the last one has left, or the program holds it for ever.
  for (uint64_t before = UINT64_MAX; reader.frames != before;) {
    before = reader.frames;
    rte_swx_pipeline_run(s.pipeline, 100000);
  }
  if (!rte_mempool_full(buffers)) fail("frame %lu never leaves the pipeline", reader.frames);
  printf("frames %lu\nshort %lu\ncut %lu\n", reader.frames, reader.dropped_short, reader.cut);
  uint64_t dropped = (reader.frames - reader.dropped_short) * (copies ? copies : 1);
  for (int i = 0; i < PORTS; i++) {
    printf("port %d %lu %lu\n", i, outs[i].packets, outs[i].bytes);
    dropped -= outs[i].packets;
    if (fclose(outs[i].file)) fail("cannot write packets: %s", strerror(errno));
  }
  printf("dropped %lu\n", dropped);
  for (unsigned i = 0; i < s.register_count; i++)
    for (uint32_t at = 0; at < s.register_sizes[i]; at++) {
      uint64_t value = 0;
      took(&s, rte_swx_ctl_pipeline_regarray_read(s.pipeline, s.registers[i], at, &value), s.registers[i]);
      printf("register %s %u %lu\n", s.registers[i], at, value);
    }
  if (fflush(stdout)) fail("cannot write the counters: %s", strerror(errno));
}

// DPDK's reader knows only its own hash functions: it gets the program with one of them for ours.
static void check(const char *path) {
  FILE *file = open_file(path, "r"), *spec = tmpfile(), *code = open_file("/dev/null", "w");
  char text[LINE_MAX_BYTES];
  if (!spec) fail("a temporary file: %s", strerror(errno));
  while (fgets(text, sizeof text, file)) {
    char *ours = strstr(text, "crc32_ethernet");
    if (ours) fprintf(spec, "%.*scrc32%s", (int)(ours - text), text, ours + strlen("crc32_ethernet"));
    else fputs(text, spec);
  }
  rewind(spec);
  uint32_t line = 0;
  const char *problem = NULL;
  start_eal();
  if (rte_swx_pipeline_codegen(spec, code, &line, &problem))
    fail("%s:%u: %s", path, line, problem ? problem : "refused");
}

int main(int count, char **words) {
  if (count > 3 && !strcmp(words[1], "run") && !strcmp(words[2], "-c")) {
    char *end;
    unsigned long asked = strtoul(words[3], &end, 10);
    if (*end || asked < 1 || asked > COPIES_MAX) fail("-c %s: a number from 1 to %d expected", words[3], COPIES_MAX);
    copies = (unsigned)asked;
    count -= 2;
    words += 2;
    words[1] = "run";
  }
  if (count == 3 && !strcmp(words[1], "check")) check(words[2]);
  else if (count == 6 && !strcmp(words[1], "run")) run(words[2], words[3], words[4], words[5]);
  else fail("usage: swx check X.spec, or swx run [-c COPIES] X.spec TABLES IN.pcap OUT");
  return 0;
}
