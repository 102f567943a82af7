{{/* What a schema cannot say readably: settings that do not go together. */}}
{{- define "corepipe.check" -}}
{{- if hasKey .Values "replicaCount" }}
{{- fail "replicaCount: this chart calls it replicas" }}
{{- end }}
{{- with .Values }}
{{- if and (ne (float64 .timeScale) 1.0) (ne .clock "device") }}
{{- fail "timeScale: only the device's clock has a scale; set clock: device" }}
{{- end }}
{{- $beyond := or .ingress.enabled .httpRoute.enabled (ne .service.type "ClusterIP") }}
{{- if and $beyond (not .apiKeys.existingSecret) (not .allowWithoutKeys) }}
{{- fail "apiKeys.existingSecret: what is reached from beyond the cluster wants API keys; name a secret, or set allowWithoutKeys: true" }}
{{- end }}
{{- if and .faults.inject .apiKeys.existingSecret (not .faults.withKeys) }}
{{- fail "faults.withKeys: faults make requests fail, and API keys mean users; set it to true if they know" }}
{{- end }}
{{- with .autoscaling }}
{{- if and (ne .type "none") (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}
{{- end }}
{{- if and (eq .type "keda") (not .keda.prometheusAddress) }}
{{- fail "autoscaling.keda.prometheusAddress: KEDA asks Prometheus; give its address, such as http://prometheus-operated.monitoring.svc:9090" }}
{{- end }}
{{- end }}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the gateway, such as [{name: gateway, namespace: gateways}]" }}
{{- end }}
{{- if and .inferencePool.enabled (not .inferencePool.endpointPicker.name) }}
{{- fail "inferencePool.endpointPicker.name: name the endpoint picker's Service" }}
{{- end }}
{{- if and .inferencePool.enabled .also }}
{{- fail "inferencePool.enabled: an endpoint picker reads the metrics of one model; give each of `also` a release of its own" }}
{{- end }}
{{- if .fleet.enabled }}
{{- if or (ne (int .replicas) 1) (ne .autoscaling.type "none") }}
{{- fail "fleet.enabled: one front has all machines; leave replicas at 1 and autoscaling.type at none, and set fleet.machines" }}
{{- end }}
{{- if or .also .kvEvents.enabled .inferencePool.enabled .lora.enabled .lora.modules .lora.dir }}
{{- fail "fleet.enabled: a fleet serves one model at one endpoint; also, kvEvents, inferencePool and lora do not go with it" }}
{{- end }}
{{- if and .fleet.maxMachines (lt (int .fleet.maxMachines) (int .fleet.machines)) }}
{{- fail "fleet.maxMachines is less than fleet.machines" }}
{{- end }}
{{- if and .fleet.slo (not .fleet.maxMachines) }}
{{- fail "fleet.slo: machines are added up to fleet.maxMachines; set it" }}
{{- end }}
{{- end }}
{{- $pods := ternary .replicas .autoscaling.maxReplicas (eq .autoscaling.type "none") }}
{{- if and (include "corepipe.cacheOfOneNode" $) (or .fleet.enabled (gt (int $pods) 1)) }}
{{- fail (printf "cache.accessMode: pods on several nodes cannot share a claim that is %s; set ReadWriteMany if the claim has it, or leave cache.persistent and cache.existingClaim out" .cache.accessMode) }}
{{- end }}
{{- if and .kvEvents.enabled (not .networkPolicy.enabled) }}
{{- fail "kvEvents.enabled: the events have all prompts' token ids, and it is networkPolicy.enabled that lets in nobody else" }}
{{- end }}
{{- if and .kvEvents.enabled (not .batching.prefixCaching) }}
{{- fail "kvEvents.enabled: there is no prefix cache (batching.prefixCaching)" }}
{{- end }}
{{- if and .metricsPort.enabled .metricsPort.from (not .networkPolicy.enabled) }}
{{- fail "metricsPort.from: it is networkPolicy.enabled that lets in nobody else" }}
{{- end }}
{{- if and .loadTest.rate .loadTest.concurrency }}
{{- fail "loadTest.rate is an open loop and loadTest.concurrency a closed one: give one of them" }}
{{- end }}
{{- if and .ingress.tlsSecret (not .ingress.host) }}
{{- fail "ingress.host: a certificate (ingress.tlsSecret) is for a host" }}
{{- end }}
{{- if and (or .ingress.enabled .httpRoute.enabled) .networkPolicy.enabled (not .networkPolicy.from) }}
{{- fail "networkPolicy.from: the policy lets in this namespace alone; add that of the Ingress controller or Gateway, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}], or [{podSelector: {}}] if it is in this one" }}
{{- end }}
{{- end }}
{{- end }}
