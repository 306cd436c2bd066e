/* The guest's verbs program: registers memory, connects a queue pair, says where
 * both are, and does what its standard input says. Arguments: rc or uc, the peer's
 * QPN and first PSN, bytes of memory.
 *   d OFFSET LEN      print memory in hexadecimal
 *   f OFFSET LEN      write memory to standard output as it is, after a line DATA
 *   p OFFSET HEX      put bytes into memory
 *   w VA RKEY OFFSET LEN   RDMA WRITE from memory to the peer
 *   a VA RKEY ADD     FETCH_ADD at the peer
 *   s                 state of the queue pair
 *   q                 end
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEER_ADDRESS "::ffff:10.77.0.1"
#define OWN_PSN 0x2000

static void die(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	exit(1);
}

static void connect_pair(struct ibv_qp *pair, int reliable, unsigned qpn, unsigned psn)
{
	int remote = IBV_ACCESS_REMOTE_WRITE | (reliable ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = remote };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	if ((errno = ibv_modify_qp(pair, &attr, mask)))
		die("INIT");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qpn;
	attr.rq_psn = psn;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = 1;
	attr.ah_attr.grh.hop_limit = 64;
	inet_pton(AF_INET6, PEER_ADDRESS, &attr.ah_attr.grh.dgid);
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (reliable)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if ((errno = ibv_modify_qp(pair, &attr, mask)))
		die("RTR");
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = OWN_PSN;
	attr.timeout = 16;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (reliable)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if ((errno = ibv_modify_qp(pair, &attr, mask)))
		die("RTS");
}

static void post(struct ibv_qp *pair, struct ibv_cq *cq, struct ibv_send_wr *request)
{
	struct ibv_send_wr *bad;
	struct ibv_wc completion;
	int got = 0;
	request->send_flags = IBV_SEND_SIGNALED;
	if ((errno = ibv_post_send(pair, request, &bad)))
		die("post");
	while (!got)
		got = ibv_poll_cq(cq, 1, &completion);
	printf("DONE %d %s\n", completion.status, ibv_wc_status_str(completion.status));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 5)
		return 2;
	int reliable = !strcmp(argv[1], "rc");
	unsigned size = strtoul(argv[4], NULL, 0);
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || !count)
		die("no device");
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_pd *domain = context ? ibv_alloc_pd(context) : NULL;
	unsigned char *memory = aligned_alloc(4096, size);
	if (!domain || !memory)
		die("open");
	memset(memory, 0, size);
	struct ibv_mr *region = ibv_reg_mr(domain, memory, size,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	if (!region || !cq)
		die("register");
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq,
		.qp_type = reliable ? IBV_QPT_RC : IBV_QPT_UC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *pair = ibv_create_qp(domain, &attr);
	if (!pair)
		die("queue pair");
	connect_pair(pair, reliable, strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	printf("READY %u %u %lu\n", pair->qp_num, region->rkey, (unsigned long)memory);
	char line[9000];
	while (fgets(line, sizeof line, stdin)) {
		unsigned long va, offset, len, add;
		unsigned rkey;
		static char hex[8300];
		if (sscanf(line, "d %lu %lu", &offset, &len) == 2) {
			printf("DUMP ");
			for (unsigned long i = 0; i < len && offset + i < size; i++)
				printf("%02x", memory[offset + i]);
			printf("\n");
		} else if (sscanf(line, "f %lu %lu", &offset, &len) == 2 && offset + len <= size) {
			printf("DATA\n");
			fflush(stdout);
			fwrite(memory + offset, 1, len, stdout);
			fflush(stdout);
		} else if (sscanf(line, "p %lu %8299s", &offset, hex) == 2) {
			for (len = 0; hex[2 * len] && hex[2 * len + 1] && offset + len < size; len++) {
				unsigned byte;
				sscanf(hex + 2 * len, "%2x", &byte);
				memory[offset + len] = byte;
			}
			printf("PUT %lu\n", len);
		} else if (sscanf(line, "w %lu %u %lu %lu", &va, &rkey, &offset, &len) == 4) {
			struct ibv_sge piece = { (unsigned long)memory + offset, len, region->lkey };
			struct ibv_send_wr request = {
				.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.wr.rdma = { .remote_addr = va, .rkey = rkey },
			};
			post(pair, cq, &request);
		} else if (sscanf(line, "a %lu %u %lu", &va, &rkey, &add) == 3) {
			struct ibv_sge piece = { (unsigned long)memory, 8, region->lkey };
			struct ibv_send_wr request = {
				.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				.wr.atomic = { .remote_addr = va, .rkey = rkey, .compare_add = add },
			};
			post(pair, cq, &request);
		} else if (line[0] == 's') {
			struct ibv_qp_attr state;
			struct ibv_qp_init_attr init;
			ibv_query_qp(pair, &state, IBV_QP_STATE, &init);
			printf("STATE %d\n", state.qp_state);
		} else if (line[0] == 'q') {
			break;
		}
	}
	printf("BYE\n");
	return 0;
}
