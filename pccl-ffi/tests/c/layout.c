/* Compiling this is the test: the layouts and values of PCCL 1.0 on 64-bit targets, and what is new. */
#include <pccl.h>

#define ASSERT_3(condition, line) typedef char assertion_in_line_##line[(condition) ? 1 : -1]
#define ASSERT_2(condition, line) ASSERT_3(condition, line)
#define ASSERT(condition) ASSERT_2(condition, __LINE__)

#ifdef __cplusplus
#define ALIGN(type) alignof(type)
#else
#define ALIGN(type) offsetof(struct { char c; type t; }, t)
#endif
#define SIZE(type, size) ASSERT(sizeof(type) == (size))
#define AT(type, field, offset) ASSERT(offsetof(type, field) == (offset))

SIZE(ccoip_inet_protocol_t, 4);
SIZE(pcclResult_t, 4);
SIZE(pcclDataType_t, 4);
SIZE(bool, 1);

SIZE(ccoip_ipv4_address_t, 4);
SIZE(ccoip_ipv6_address_t, 16);
SIZE(ccoip_inet_address_t, 24);
AT(ccoip_inet_address_t, ipv4, 4);
AT(ccoip_inet_address_t, ipv6, 8);
SIZE(ccoip_socket_address_t, 28);
AT(ccoip_socket_address_t, port, 24);

SIZE(pcclCommCreateParams_t, 36);
AT(pcclCommCreateParams_t, peer_group, 28);
AT(pcclCommCreateParams_t, p2p_connection_pool_size, 32);
SIZE(pcclReduceInfo_t, 24);
AT(pcclReduceInfo_t, tx_bytes, 8);
AT(pcclReduceInfo_t, rx_bytes, 16);
SIZE(pcclReduceOperandDescriptor_t, 8);
AT(pcclReduceOperandDescriptor_t, distribution_hint, 4);
SIZE(pcclQuantizationOptions_t, 8);
AT(pcclQuantizationOptions_t, algorithm, 4);
SIZE(pcclReduceDescriptor_t, 40);
AT(pcclReduceDescriptor_t, count, 0);
AT(pcclReduceDescriptor_t, op, 8);
AT(pcclReduceDescriptor_t, tag, 16);
AT(pcclReduceDescriptor_t, src_descriptor, 24);
AT(pcclReduceDescriptor_t, quantization_options, 32);
SIZE(pcclReduceOpDescriptor_t, 56);
SIZE(struct pcclReduceSingleDescriptor_t, 56);
AT(pcclReduceOpDescriptor_t, recvbuf, 8);
AT(pcclReduceOpDescriptor_t, descriptor, 16);
SIZE(pcclAsyncReduceOp_t, 16);
AT(pcclAsyncReduceOp_t, tag, 8);
SIZE(pcclRankUuid_t, 16);
SIZE(pcclTensorInfo_t, 40);
AT(pcclTensorInfo_t, data, 8);
AT(pcclTensorInfo_t, count, 16);
AT(pcclTensorInfo_t, datatype, 24);
AT(pcclTensorInfo_t, device_type, 28);
AT(pcclTensorInfo_t, allow_content_inequality, 32);
SIZE(pcclSharedState_t, 24);
AT(pcclSharedState_t, count, 8);
AT(pcclSharedState_t, infos, 16);
SIZE(pcclSharedStateSyncInfo_t, 16);
AT(pcclSharedStateSyncInfo_t, rx_bytes, 8);
SIZE(pcclBuildInfo_t, 1);

#ifdef __cplusplus
ASSERT(ALIGN(ccoip_socket_address_t) == 4);
ASSERT(ALIGN(pcclCommCreateParams_t) == 4);
ASSERT(ALIGN(pcclReduceDescriptor_t) == 8);
#endif

SIZE(pcclCommConfig_t, 64);
AT(pcclCommConfig_t, announce, 32);
AT(pcclCommConfig_t, peer_group, 40);
AT(pcclCommConfig_t, reserved, 52);
AT(pcclCommConfig_t, time_limit_ms, 56);
SIZE(pcclMemberInfo_t, 136);
AT(pcclMemberInfo_t, name, 8);
AT(pcclMemberInfo_t, address, 72);
SIZE(pcclBuffer_t, 24);
AT(pcclBuffer_t, device_index, 12);
AT(pcclBuffer_t, stream, 16);
SIZE(pcclSyncProgress_t, 40);
SIZE(pcclSyncSource_t, 16);
SIZE(pcclDivergence_t, 112);
AT(pcclDivergence_t, has_since, 104);
SIZE(pcclReduceCall_t, 112);
AT(pcclReduceCall_t, recv, 32);
AT(pcclReduceCall_t, descriptor, 56);
AT(pcclReduceCall_t, time_limit_ms, 96);
AT(pcclReduceCall_t, algorithm, 104);
SIZE(pcclMasterConfig_t, 24);
AT(pcclMasterConfig_t, peer_timeout_ms, 16);

ASSERT(inetIPv4 == 0 && inetIPv6 == 1);
ASSERT(pcclSuccess == 0 && pcclNotInitialized == 1 && pcclInternalError == 2 && pcclInvalidArgument == 3);
ASSERT(pcclInvalidUsage == 4 && pcclTooFewPeers == 5 && pcclMasterConnectionFailed == 6);
ASSERT(pcclRankConnectionFailed == 7 && pcclRankConnectionLost == 8 && pcclNoSharedStateAvailable == 9);
ASSERT(pcclPendingAsyncOps == 10 && pcclUpdateTopologyFailed == 11 && pcclTopologyOptimizationFailed == 12);
ASSERT(pcclUint8 == 0 && pcclInt8 == 1 && pcclInt16 == 2 && pcclUint16 == 3 && pcclUint32 == 4 && pcclInt32 == 5);
ASSERT(pcclUint64 == 6 && pcclInt64 == 7 && pcclFloat16 == 8 && pcclBFloat16 == 9 && pcclFloat == 10);
ASSERT(pcclDouble == 11);
ASSERT(pcclDeviceCpu == 0 && pcclDeviceCuda == 1);
ASSERT(pcclSum == 0 && pcclAvg == 1 && pcclProd == 2 && pcclMax == 3 && pcclMin == 4);
ASSERT(PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE == 1 && PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE == 2);
ASSERT(PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS == 3 && PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE == 4);
ASSERT(PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR == 0);
ASSERT(PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY == 1 && PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY == 2);
ASSERT(pcclDistributionNone == 0 && pcclDistributionNormal == 1 && pcclDistributionUniform == 2);
ASSERT(pcclQuantNone == 0 && pcclQuantMinMax == 1 && pcclQuantZeroPointScale == 2);
ASSERT(pcclLogOff == 0 && pcclLogError == 1 && pcclLogTrace == 5);

/* Every function with the type that programs for PCCL 1.0 expect of it. */
extern pcclResult_t (*const functions_1)(void);
pcclResult_t (*const functions_1)(void) = pcclInit;
extern pcclResult_t (*const functions_2)(const pcclCommCreateParams_t *, pcclComm_t **);
pcclResult_t (*const functions_2)(const pcclCommCreateParams_t *, pcclComm_t **) = pcclCreateCommunicator;
extern pcclResult_t (*const functions_3)(const pcclComm_t *, pcclAttribute_t, int *);
pcclResult_t (*const functions_3)(const pcclComm_t *, pcclAttribute_t, int *) = pcclGetAttribute;
extern pcclResult_t (*const functions_4)(const pcclComm_t *, bool *);
pcclResult_t (*const functions_4)(const pcclComm_t *, bool *) = pcclArePeersPending;
extern pcclResult_t (*const functions_5)(const void *, void *, const pcclReduceDescriptor_t *, const pcclComm_t *,
                                         pcclReduceInfo_t *);
pcclResult_t (*const functions_5)(const void *, void *, const pcclReduceDescriptor_t *, const pcclComm_t *,
                                  pcclReduceInfo_t *) = pcclAllReduce;
extern pcclResult_t (*const functions_6)(const pcclReduceOpDescriptor_t *, size_t, const pcclComm_t *,
                                         pcclReduceInfo_t *, int);
pcclResult_t (*const functions_6)(const pcclReduceOpDescriptor_t *, size_t, const pcclComm_t *, pcclReduceInfo_t *,
                                  int) = pcclAllReduceMultipleWithRetry;
extern pcclResult_t (*const functions_7)(const pcclComm_t *, pcclSharedState_t *, pcclSharedStateSyncStrategy_t,
                                         pcclSharedStateSyncInfo_t *);
pcclResult_t (*const functions_7)(const pcclComm_t *, pcclSharedState_t *, pcclSharedStateSyncStrategy_t,
                                  pcclSharedStateSyncInfo_t *) = pcclSynchronizeSharedState;
extern pcclResult_t (*const functions_8)(ccoip_socket_address_t, pcclMasterInstance_t **);
pcclResult_t (*const functions_8)(ccoip_socket_address_t, pcclMasterInstance_t **) = pcclCreateMaster;
