{{/* A fleet: a RayCluster of KubeRay's whose machines compute, and the server as the front of it. */}}

{{- define "corepipe.fleetLabels" -}}
app.kubernetes.io/name: {{ include "corepipe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: fleet
{{- end }}

{{/* KubeRay calls the Service of a cluster's head so. */}}
{{- define "corepipe.fleetHead" -}}
{{ include "corepipe.fullname" . }}-head-svc:6379
{{- end }}

{{/* KubeRay makes a secret of the cluster's name where none is named. */}}
{{- define "corepipe.fleetEnv" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: RAY_AUTH_MODE
  value: token
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.fleet.tokenSecret | default (include "corepipe.fullname" .) }}
      key: auth_token
{{- end }}

{{- define "corepipe.fleetArgs" -}}
{{- with .Values.fleet }}
- --fleet={{ include "corepipe.fleetHead" $ }}
{{- include "corepipe.flag" (list "replicas" .machines) }}
{{- include "corepipe.flag" (list "max-replicas" .maxMachines) }}
{{- include "corepipe.flag" (list "slo" .slo) }}
{{- end }}
{{- end }}

{{/* Ray's part in the server's pod, beside it; what Ray keeps in /tmp they share. */}}
{{- define "corepipe.fleetFront" -}}
- name: ray
  image: {{ include "corepipe.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args: [fleet, join, {{ include "corepipe.fleetHead" . | quote }}, --host=$(POD_IP), --front]
  env:
    {{- include "corepipe.fleetEnv" . | nindent 4 }}
  resources:
    {{- toYaml .Values.fleet.resources | nindent 4 }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: shm
      mountPath: /dev/shm
{{- end }}

{{/* A pod of the RayCluster, of a list (context, name, args, resources, mounts). */}}
{{- define "corepipe.fleetPod" -}}
{{- $root := index . 0 -}}
metadata:
  labels:
    {{- with $root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "corepipe.fleetLabels" $root | nindent 4 }}
    {{- include "corepipe.commonLabels" $root | nindent 4 }}
  {{- with $root.Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "corepipe.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: {{ index . 1 }}
      image: {{ include "corepipe.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      # The image's entry point: KubeRay takes both as they are.
      command: [tini, -e, "143", --, corepipe]
      args:
        {{- toYaml (index . 2) | nindent 8 }}
      env:
        {{- include "corepipe.fleetEnv" $root | nindent 8 }}
        - name: COREPIPE_CACHE
          value: /var/cache/corepipe
        {{- with $root.Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if eq (index . 1) "head" }}
      ports:
        - name: gcs-server
          containerPort: 6379
          protocol: TCP
      livenessProbe:
        tcpSocket:
          port: gcs-server
      readinessProbe:
        tcpSocket:
          port: gcs-server
      {{- else }}
      # Ray's processes are started again by what runs here. The probes that KubeRay would add ask the head, too,
      # and a machine that computes is to outlive it.
      livenessProbe:
        exec:
          command: ["true"]
      readinessProbe:
        exec:
          command: ["true"]
      {{- end }}
      resources:
        {{- toYaml (index . 3) | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - name: shm
          mountPath: /dev/shm
        {{- include "corepipe.volumeMounts" $root | nindent 8 }}
  volumes:
    {{- include "corepipe.volumes" $root | nindent 4 }}
  {{- with $root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "corepipe.fleetLabels" $root | nindent 10 }}
{{- end }}
