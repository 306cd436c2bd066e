/* What the relay asks of libibverbs. The structures of that library differ from
 * version to version, so they are touched here alone, where its header is. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct strata_device {
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_cq *completions;
	int gid_index;
};

struct strata_connected {
	struct ibv_mr *region;
	struct ibv_qp *pair;
};

/* Opens the device of this name; NULL and errno if that fails. */
struct strata_device *strata_verbs_open(const char *name, int gid_index)
{
	struct strata_device *device = calloc(1, sizeof *device);
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!device || !list) {
		free(device);
		return NULL;
	}
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			device->context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	device->gid_index = gid_index;
	if (!device->context)
		errno = errno ? errno : ENODEV;
	else if ((device->domain = ibv_alloc_pd(device->context)))
		device->completions = ibv_create_cq(device->context, 64, NULL, NULL, 0);
	if (!device->completions) {
		if (device->domain)
			ibv_dealloc_pd(device->domain);
		if (device->context)
			ibv_close_device(device->context);
		free(device);
		return NULL;
	}
	return device;
}

void strata_verbs_close(struct strata_device *device)
{
	ibv_destroy_cq(device->completions);
	ibv_dealloc_pd(device->domain);
	ibv_close_device(device->context);
	free(device);
}

void strata_verbs_disconnect(struct strata_connected *connected)
{
	if (connected->pair)
		ibv_destroy_qp(connected->pair);
	if (connected->region)
		ibv_dereg_mr(connected->region);
	free(connected);
}

static int to_ready(struct strata_device *device, struct ibv_qp *pair, int reliable, int rights,
		    uint32_t peer_number, uint32_t peer_psn, uint32_t own_psn, int mtu,
		    const uint8_t *peer_gid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = (unsigned)rights & ~IBV_ACCESS_LOCAL_WRITE,
	};
	int error = ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_ACCESS_FLAGS);
	if (error)
		return error;
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = mtu == 4096 ? IBV_MTU_4096 : mtu == 2048 ? IBV_MTU_2048 :
			mtu == 1024 ? IBV_MTU_1024 : mtu == 512 ? IBV_MTU_512 : IBV_MTU_256;
	attr.dest_qp_num = peer_number;
	attr.rq_psn = peer_psn;
	attr.max_dest_rd_atomic = rights & IBV_ACCESS_REMOTE_READ ? 16 : 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = (uint8_t)device->gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	memcpy(&attr.ah_attr.grh.dgid, peer_gid, 16);
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (reliable)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	error = ibv_modify_qp(pair, &attr, mask);
	if (error)
		return error;
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = own_psn;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (reliable)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(pair, &attr, mask);
}

/* Registers memory and connects a queue pair to the peer; NULL and errno if that
 * fails. */
struct strata_connected *strata_verbs_connect(struct strata_device *device, void *memory,
					      size_t len, int reliable, int reads,
					      uint32_t peer_number,
					      uint32_t peer_psn, uint32_t own_psn, int mtu,
					      const uint8_t *peer_gid, uint32_t *number,
					      uint32_t *rkey)
{
	struct strata_connected *connected = calloc(1, sizeof *connected);
	if (!connected)
		return NULL;
	struct ibv_qp_init_attr attr = {
		.send_cq = device->completions,
		.recv_cq = device->completions,
		.qp_type = reliable ? IBV_QPT_RC : IBV_QPT_UC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	int error = 0;
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		     (reads ? IBV_ACCESS_REMOTE_READ : 0);
	connected->region = ibv_reg_mr(device->domain, memory, len, rights);
	if (connected->region)
		connected->pair = ibv_create_qp(device->domain, &attr);
	if (!connected->pair)
		error = errno ? errno : EINVAL;
	else
		error = to_ready(device, connected->pair, reliable, rights, peer_number, peer_psn, own_psn,
				 mtu, peer_gid);
	if (error) {
		strata_verbs_disconnect(connected);
		errno = error;
		return NULL;
	}
	*number = connected->pair->qp_num;
	*rkey = connected->region->rkey;
	return connected;
}
