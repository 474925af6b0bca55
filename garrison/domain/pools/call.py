"""The requests that a nodepool's activities get, built from its state."""

from __future__ import annotations

from datetime import datetime

from garrison.domain.clusters.call import provider_node
from garrison.domain.pools.life import facts_of
from garrison.domain.pools.seats import owner_id
from garrison.domain.rates import provider_rate, rounded
from garrison.domain.resource_ids import compute_cluster_workflow_id
from garrison.models.cluster_messages import (
    DeleteRequest,
    LookRequest,
    PrepareRequest,
    PurchaseRequest,
)
from garrison.models.compute_cluster import JoinRequest, NodepoolMember
from garrison.models.group import GroupRequest, NodeStatus, WorkloadState
from garrison.models.membership import MembershipAsked
from garrison.models.nodepool import MachineDeletion, PoolOffersRequest
from garrison.models.nodepool_state import NodepoolState
from garrison.models.placement import PlacementsTold


def membership_request(state: NodepoolState, verb: str) -> MembershipAsked:
    """Return the wish to enter or leave the compute cluster; each life has one of each."""
    member = NodepoolMember(owner=owner_id(state), uid=state.uid)
    return MembershipAsked(
        compute_cluster=compute_cluster_workflow_id(state.compute_cluster),
        request=JoinRequest(request_id=f"{verb}-{state.uid}", member=member),
    )


def offers_request(state: NodepoolState) -> PoolOffersRequest:
    """Return the question what can be bought."""
    assert state.spec is not None
    return PoolOffersRequest(
        provider=facts_of(state).name,
        region=state.region,
        instance_types=state.spec.instance_types,
        capacity_types=state.spec.capacity_types,
    )


def purchase_request(state: NodepoolState, name: str) -> PurchaseRequest:
    """Return the order of one machine, at no more than the price that was decided on."""
    machine = state.machines[name]
    offer = machine.offer.offer
    asked = provider_rate(offer, 1)
    assert asked is not None, "an offer without a price is never chosen"
    group = GroupRequest(
        token=name,
        owner=owner_id(state),
        uid=state.uid,
        name=f"{state.compute_cluster}-{state.id}-{machine.number}",
        region=offer.region or state.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        capacity_type=offer.capacity_type,
        count=1,
        gpus_per_node=int(offer.accelerator_count),
        max_usd_per_node_hour=rounded(asked),
    )
    return PurchaseRequest(provider=facts_of(state).name, request=group)


def prepare_request(state: NodepoolState, name: str) -> PrepareRequest:
    """Return the order to reach one node."""
    assert state.spec is not None
    return PrepareRequest(
        provider=facts_of(state).name,
        owner=owner_id(state),
        nodes=(provider_node(state.machines[name].node),),
        authorized_keys=state.spec.ssh_keys,
        envs={0: {"GARRISON_NODEPOOL": f"{state.compute_cluster}/{state.id}"}},
    )


def delete_request(state: NodepoolState, name: str, look_at: datetime) -> MachineDeletion:
    """Return the order to delete one machine by its token."""
    machine = state.machines[name]
    request = DeleteRequest(
        provider=facts_of(state).name,
        owner=owner_id(state),
        uid=state.uid,
        tokens=(name,),
        look_at=look_at,
    )
    runs = machine.node.status is NodeStatus.RUNNING
    left = [work.name for work in machine.workloads if work.state is WorkloadState.RUNNING]
    return MachineDeletion(
        request=request,
        node=machine.prepared if runs else None,
        replicas=tuple(left),
    )


def look_request(state: NodepoolState, not_before: datetime) -> LookRequest:
    """Return the wish to be told of a pass."""
    return LookRequest(
        provider=facts_of(state).name,
        owner=owner_id(state),
        uid=state.uid,
        not_before=not_before,
    )


def tell_request(state: NodepoolState, uid: str) -> PlacementsTold:
    """Return the newest statement for one customer."""
    customer = state.customers[uid]
    assert customer.said is not None
    return PlacementsTold(deployment=customer.demand.deployment, placements=customer.said)
