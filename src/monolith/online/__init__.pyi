from monolith.deltalog.follow import Follower as Follower
from monolith.deltalog.follow import Staleness as Staleness
from monolith.deltalog.publish import DeltaPublisher as DeltaPublisher
from monolith.deltalog.publish import PublisherConfig as PublisherConfig
from monolith.hooks import DeltaPublishHook as DeltaPublishHook
